/* The lanes of a sum (reduce.h), a piece of a chunk at a time: for sums whose values nobody stores. */
#define TPF_SUM_ADD(T, dt)                                                                                      \
    static void tpf_sum_add_##dt(double *lane, const void *values, int64_t n, int first) {                      \
        const T *x = values;                                                                                    \
        double sum[TPF_R_LANES];                                                                                \
        int64_t i = 0;                                                                                          \
        for (int j = 0; j < TPF_R_LANES; j++) sum[j] = first ? 0 : lane[j];                                     \
        for (; i + TPF_R_LANES <= n; i += TPF_R_LANES)                                                          \
            for (int j = 0; j < TPF_R_LANES; j++) sum[j] += (double)x[i + j];                                   \
        for (int j = 0; i + j < n; j++) sum[j] += (double)x[i + j];                                             \
        for (int j = 0; j < TPF_R_LANES; j++) lane[j] = sum[j];                                                 \
    }
TPF_SUM_ADD(float, f32)
TPF_SUM_ADD(double, f64)
