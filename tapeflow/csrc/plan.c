/* Groups of elementwise steps, a block at a time: see plan.h. */
#include "plan.h"

#include <string.h>

#define LANES 16 /* TPF_R_LANES */

typedef union {
    int64_t align[8];
    char bytes[TPF_GROUP_BYTES];
} group_blocks;

/* The lanes of each sum in a chunk that is under way. */
typedef double lanes_of[LANES];

#define STRETCH(T)                                                                                              \
    for (int64_t r = 0; r < rows; r++)                                                                          \
        for (int64_t i = 0; i < n; i++) ((T *)y)[r * n + i] = ((const T *)a)[r];

static void stretch(void *y, const void *a, int itemsize, int64_t rows, int64_t n) {
    if (itemsize == 4) {
        STRETCH(uint32_t)
    } else if (itemsize == 8) {
        STRETCH(uint64_t)
    } else {
        STRETCH(uint8_t)
    }
}

static void run_steps(const tpf_group *g, char *const *p, int64_t count, lanes_of *lanes, int first) {
    int64_t rows = g->row ? count / g->row : 0;
    int sum = 0;
    for (const tpf_group_step *s = g->steps, *last = s + g->n_steps; s < last; s++) {
        int64_t n = s->per_row ? rows : count;
        if (s->loop)
            s->loop(p[s->y], s->a < 0 ? NULL : p[s->a], s->b < 0 ? NULL : p[s->b], s->c < 0 ? NULL : p[s->c], n);
        else if (s->cast)
            s->cast(p[s->y], p[s->a], n);
        else if (s->reduce)
            s->reduce(p[s->y], p[s->a], rows, g->row, 1);
        else if (s->sum)
            s->sum(lanes[sum++], p[s->a], count, first);
        else
            stretch(p[s->y], p[s->a], s->itemsize, rows, g->row);
    }
}

/* Elements begin .. end: of any, of whole rows, or of a chunk of one. */
static void run_span(const tpf_group *g, group_blocks *blocks, char **p, int64_t begin, int64_t end, lanes_of *lanes) {
    for (int i = 0; i < g->n_operands; i++) {
        const tpf_group_operand *op = &g->operands[i];
        if (op->kind == TPF_GROUP_DIRECT) p[i] = op->data + begin * op->itemsize;
        else if (op->kind == TPF_GROUP_ROWS) p[i] = op->data + begin / g->row * op->itemsize;
        else p[i] = blocks->bytes + (int64_t)op->block * g->block_bytes;
    }
    for (int64_t start = begin; start < end; start += g->block) {
        int64_t count = end - start < g->block ? end - start : g->block;
        for (int i = 0; i < g->n_operands; i++) {
            const tpf_group_operand *op = &g->operands[i];
            if (op->kind == TPF_GROUP_PACKED)
                tpf_pack(p[i], op->data, op->itemsize, g->ndim, g->shape, op->strides, start, count);
        }
        run_steps(g, p, count, lanes, start == begin);
        for (int i = 0; i < g->n_operands; i++) {
            const tpf_group_operand *op = &g->operands[i];
            if (op->kind == TPF_GROUP_DIRECT) p[i] += count * op->itemsize;
            else if (op->kind == TPF_GROUP_ROWS && !g->chunks) p[i] += count / g->row * op->itemsize;
        }
    }
}

static double join_lanes(const double *lane) {
    double by8[8], by4[4];
    for (int j = 0; j < 8; j++) by8[j] = lane[j] + lane[j + 8];
    for (int j = 0; j < 4; j++) by4[j] = by8[j] + by8[j + 4];
    return (by4[0] + by4[2]) + (by4[1] + by4[3]);
}

static void run_chunk(const tpf_group *g, group_blocks *blocks, char **p, int64_t chunk) {
    lanes_of lanes[TPF_GROUP_SUMS];
    int64_t row = chunk / g->chunks, at = (chunk - row * g->chunks) * TPF_SUM_CHUNK;
    int64_t count = g->row - at < TPF_SUM_CHUNK ? g->row - at : TPF_SUM_CHUNK;
    int sum = 0;
    run_span(g, blocks, p, row * g->row + at, row * g->row + at + count, lanes);
    for (int i = 0; i < g->n_steps; i++)
        if (g->steps[i].sum) g->steps[i].parts[chunk] = join_lanes(lanes[sum++]);
}

/* Units begin .. end: elements, whole rows, or chunks. */
static void run_range(void *ctx, int64_t begin, int64_t end) {
    const tpf_group *g = ctx;
    group_blocks blocks;
    char *p[TPF_GROUP_OPERANDS];
    int64_t most = g->row ? g->block : end - begin < g->block ? end - begin : g->block;
    for (int i = 0; i < g->n_operands; i++) {
        const tpf_group_operand *op = &g->operands[i];
        if (op->kind == TPF_GROUP_CONSTANT)
            tpf_fill(blocks.bytes + (int64_t)op->block * g->block_bytes, op->data, op->itemsize, most);
    }
    if (g->chunks)
        for (int64_t chunk = begin; chunk < end; chunk++) run_chunk(g, &blocks, p, chunk);
    else if (g->row)
        run_span(g, &blocks, p, begin * g->row, end * g->row, NULL);
    else
        run_span(g, &blocks, p, begin, end, NULL);
}

/* What the chunks of each row come to, and the division of a mean. */
static void join_sum(const tpf_group *g, const tpf_group_step *s) {
    double *parts = s->parts;
    char *y = g->operands[s->y].data;
    for (int64_t row = 0; row < g->size / g->row; row++, parts += g->chunks) {
        double sum = tpf_join_parts(parts, g->chunks);
        if (s->is_mean) sum /= (double)g->row;
        if (s->dtype == TPF_FLOAT32) ((float *)y)[row] = (float)sum;
        else ((double *)y)[row] = sum;
    }
}

void tpf_run_group(const tpf_group *group) {
    if (group->size == 0) return;
    int64_t units = group->row ? group->size / group->row : group->size;
    if (group->chunks) units *= group->chunks;
    if (group->work)
        TPF_SHARE(group->work, TPF_GROUP_WAKES)(run_range, (void *)group, units, group->grain);
    else
        run_range((void *)group, 0, units);
    for (int i = 0; i < group->n_steps; i++)
        if (group->steps[i].sum) join_sum(group, &group->steps[i]);
}

static void run_blocks(void *ctx, int64_t begin, int64_t end) {
    const tpf_lanes *l = ctx;
    char *cells = l->cells[begin / l->grain];
    for (int k = 0; k < l->n_loads; k++)
        if (!l->loads[k].each)
            tpf_fill(cells + l->loads[k].cell * 8 * TPF_LANES, l->loads[k].data, l->loads[k].itemsize, TPF_LANES);
    for (int64_t block = begin; block < end; block++) {
        int64_t start = block * TPF_LANES, count = l->n - start < TPF_LANES ? l->n - start : TPF_LANES;
        for (int k = 0; k < l->n_loads; k++) {
            const tpf_lane_port *p = &l->loads[k];
            char *to = cells + p->cell * 8 * TPF_LANES;
            if (!p->each) continue;
            memcpy(to, p->data + start * p->itemsize, count * p->itemsize);
            if (count < TPF_LANES) tpf_fill(to + count * p->itemsize, to, p->itemsize, TPF_LANES - count);
        }
        for (int k = 0; k < l->n_code; k++) l->run(cells, l->code[2 * k], l->code[2 * k + 1]);
        for (int k = 0; k < l->n_stores; k++) {
            const tpf_lane_port *p = &l->stores[k];
            memcpy(p->data + start * p->itemsize, cells + p->cell * 8 * TPF_LANES, count * p->itemsize);
        }
    }
}

void tpf_run_over_lanes(const tpf_lanes *lanes) {
    tpf_parallel(run_blocks, (void *)lanes, lanes->blocks, lanes->grain);
}
