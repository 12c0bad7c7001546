/* Groups of elementwise steps, a block at a time: see plan.h. */
#include "plan.h"

#include <string.h>

static void run_range(void *ctx, int64_t begin, int64_t end) {
    const tpf_group *g = ctx;
    union {
        int64_t align[8];
        char bytes[TPF_GROUP_BYTES];
    } blocks;
    char *p[TPF_GROUP_OPERANDS];
    int64_t most = end - begin < g->block ? end - begin : g->block;
    for (int i = 0; i < g->n_operands; i++) {
        const tpf_group_operand *op = &g->operands[i];
        p[i] = op->kind == TPF_GROUP_DIRECT ? op->data + begin * op->itemsize
                                            : blocks.bytes + (int64_t)op->block * g->block_bytes;
        if (op->kind == TPF_GROUP_CONSTANT) tpf_fill(p[i], op->data, op->itemsize, most);
    }
    for (int64_t start = begin; start < end; start += g->block) {
        int64_t count = end - start < g->block ? end - start : g->block;
        for (int i = 0; i < g->n_operands; i++) {
            const tpf_group_operand *op = &g->operands[i];
            if (op->kind == TPF_GROUP_PACKED)
                tpf_pack(p[i], op->data, op->itemsize, g->ndim, g->shape, op->strides, start, count);
        }
        for (const tpf_group_step *s = g->steps, *last = s + g->n_steps; s < last; s++) {
            if (s->loop)
                s->loop(p[s->y], s->a < 0 ? NULL : p[s->a], s->b < 0 ? NULL : p[s->b], s->c < 0 ? NULL : p[s->c],
                        count);
            else
                s->cast(p[s->y], p[s->a], count);
        }
        for (int i = 0; i < g->n_operands; i++)
            if (g->operands[i].kind == TPF_GROUP_DIRECT) p[i] += count * g->operands[i].itemsize;
    }
}

void tpf_run_group(const tpf_group *group) {
    if (group->size == 0) return;
    if (group->parallel)
        tpf_parallel(run_range, (void *)group, group->size, group->grain);
    else
        run_range((void *)group, 0, group->size);
}
