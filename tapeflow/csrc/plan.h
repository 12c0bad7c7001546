/* What a frozen plan runs: groups of elementwise steps, block by block, and programs of 0-d values.

   A group is one pass over a shape: each step reads whole blocks of operands and writes one, by the same loops that
   eager ops use, so the bits are the same; what only the group needs never leaves a block that stays in L1.
   A reduction over rows of the shape (its last axes) is a step, too. Where a row fits a block, blocks hold whole rows and
   each is reduced as it is. Otherwise only sums run along: the lanes of a chunk of TPF_SUM_CHUNK elements are carried
   from block to block, the chunks are what threads share, and the tree above them follows (reduce.h has the same one).
   In a block of whole rows there are steps over one element a row, too.
   (Programs of 0-d values run on the machine of scalar.h, over cells of eight bytes.) */
#ifndef TPF_PLAN_H
#define TPF_PLAN_H

#include "exec.h"

enum {
    TPF_GROUP_BLOCK, /* a block of the group's own */
    TPF_GROUP_DIRECT, /* contiguous memory of the group's shape */
    TPF_GROUP_CONSTANT, /* one element for all */
    TPF_GROUP_PACKED, /* strided memory, packed into a block of its own */
    TPF_GROUP_ROWS /* contiguous memory of one element a row */
};

typedef struct {
    int kind;
    int block;              /* of a BLOCK, CONSTANT or PACKED operand: its number */
    int itemsize;
    char *data;             /* set at each run where it may move */
    const int64_t *strides; /* of a PACKED operand: bytes, broadcast to the group's shape */
} tpf_group_operand;

typedef struct {
    tpf_loop loop; /* one of these is not NULL, or each row's element of a is stretched over the row */
    tpf_cast cast;
    tpf_reduce reduce; /* of rows */
    tpf_sum_add sum;   /* of rows longer than a block */
    int y, a, b, c;    /* operands; -1: none */
    int per_row;       /* over one element a row */
    int itemsize;      /* of what is stretched */
    int is_mean, dtype;
    double *parts;     /* of a sum: one for each chunk */
} tpf_group_step;

typedef struct {
    int n_operands, n_steps, n_blocks, ndim, n_sums;
    int64_t row, chunks; /* elements of a row; chunks of one that is longer than a block; 0: none */
    int block; /* elements of a block */
    int block_bytes;
    const int64_t *shape;
    int64_t size, grain, work; /* grain: a thread's share; work: steps times elements, 0: not to be shared */
    tpf_group_operand *operands;
    tpf_group_step *steps;
} tpf_group;

#define TPF_GROUP_WAKES 400000 /* work from which it pays to wake threads */
#define TPF_GROUP_OPERANDS 4096
#define TPF_GROUP_SUMS 64 /* of a group whose rows are longer than a block */
#define TPF_GROUP_BYTES (192 * 1024) /* of all blocks of a group: a thread's stack holds them */

void tpf_run_group(const tpf_group *group);

/* A program of 0-d values over many: TPF_LANES at a time, blocks of them shared among threads. */

typedef struct {
    char *data;   /* of n elements, or of one for all */
    int64_t cell;
    int itemsize;
    int each;     /* whether there are n of them */
} tpf_lane_port;

typedef struct {
    tpf_machine run;
    const tpf_scalar *const *code; /* n_code pairs: begin, end */
    const tpf_lane_port *loads, *stores;
    int n_code, n_loads, n_stores;
    int64_t n, blocks, grain;      /* of the blocks: a piece of work */
    char *const *cells;            /* of each piece its own */
} tpf_lanes;

void tpf_run_over_lanes(const tpf_lanes *lanes);

#endif
