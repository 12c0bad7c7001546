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
    if (group->work)
        TPF_SHARE(group->work, TPF_GROUP_WAKES)(run_range, (void *)group, group->size, group->grain);
    else
        run_range((void *)group, 0, group->size);
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
