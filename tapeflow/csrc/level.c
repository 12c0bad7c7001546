/* The kernels of one instruction-set level, reached through one table.

   The build compiles this file once per level with -DTPF_LEVEL=v2, v3, v4 or base, and the flags of that
   level. Everything included here is static: the table is the only symbol that leaves, so no
   code of a level can be linked into another. */
#include "tpf.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#include "tpf_math.h"
#include "tpf_math_more.h"
#include "tpf_integer.h"
#include "tpf_composite.h"
#include "loops.h"
#include "scalar.h"
#include "cast.h"
#include "reduce.h"
#include "sum_add.h"
#include "variance.h"
#include "scan.h"
#include "dot.h"
#include "norm.h"
#include "softmax.h"
#include "scatter.h"
#include "matmul.h"
#include "matvec.h"
#include "random.h"

#ifndef TPF_LEVEL
#define TPF_LEVEL base
#endif
#define TPF_CONCAT_(a, b) a##b
#define TPF_CONCAT(a, b) TPF_CONCAT_(a, b)
#define TPF_STRING_(a) #a
#define TPF_STRING(a) TPF_STRING_(a)
#define TPF_FLOATS(name) {name##_f32, name##_f64}
#define TPF_NUMBERS(name) name##_u8, name##_i32, name##_i64, name##_f32, name##_f64

extern const tpf_kernels TPF_CONCAT(tpf_kernels_, TPF_LEVEL);
const tpf_kernels TPF_CONCAT(tpf_kernels_, TPF_LEVEL) = {
    .level = TPF_STRING(TPF_LEVEL),
    .loop = TPF_LOOP_TABLE,
    .vjp = TPF_VJP_TABLE,
    .cast = TPF_CAST_TABLE,
    .reduce = TPF_REDUCE_TABLE,
    .sum_add = TPF_FLOATS(tpf_sum_add),
    .variance = TPF_FLOATS(tpf_variance),
    .scan = TPF_SCAN_TABLE,
    .softmax = TPF_FLOATS(tpf_softmax),
    .log_softmax = TPF_FLOATS(tpf_log_softmax),
    .logsumexp = TPF_FLOATS(tpf_logsumexp),
    .softmax_vjp = TPF_FLOATS(tpf_softmax_vjp),
    .log_softmax_vjp = TPF_FLOATS(tpf_log_softmax_vjp),
    .cross_entropy = TPF_FLOATS(tpf_cross_entropy),
    .cross_entropy_vjp = TPF_FLOATS(tpf_cross_entropy_vjp),
    .scatter_add = {NULL, TPF_NUMBERS(tpf_scatter_add)},
    .matmul = {tpf_matmul_b8, TPF_NUMBERS(tpf_matmul)},
    .matvec = TPF_FLOATS(tpf_matvec),
    .dot = TPF_FLOATS(tpf_dot),
    .layer_norm = TPF_FLOATS(tpf_layer_norm),
    .layer_norm_vjp = TPF_FLOATS(tpf_layer_norm_vjp),
    .uniform = TPF_FLOATS(tpf_uniform),
    .normal = TPF_FLOATS(tpf_normal),
    .bits32 = tpf_bits32,
    .bits64 = tpf_bits64,
    .run_scalars = tpf_run_scalars,
    .run_lanes = tpf_run_lanes,
};
