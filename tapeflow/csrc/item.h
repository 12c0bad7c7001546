/* FOR_ITEM: a statement with the item size as a constant SIZE, so that its memcpy becomes a move. */
#ifndef TPF_ITEM_H
#define TPF_ITEM_H

#define FOR_ITEM(itemsize, call)                  \
    do {                                          \
        switch (itemsize) {                       \
        case 1: { enum { SIZE = 1 }; call; } break; \
        case 4: { enum { SIZE = 4 }; call; } break; \
        case 8: { enum { SIZE = 8 }; call; } break; \
        default: {                                \
            const size_t SIZE = (size_t)(itemsize); \
            call;                                 \
        }                                         \
        }                                         \
    } while (0)

#endif
