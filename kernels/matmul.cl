/* y (m, n) = a (m, k) @ b (k, n), or a batch of such products.

   Every element is 0 + a[i,0]*b[0,j] + a[i,1]*b[1,j] + ... with k ascending, in the dtype of y: by fma where the device
   has a fast one, and so at most k * 2^-24 * sum |a b| off in float32. The bits depend neither on strides, tiles or
   work-groups nor on which of the two kernels it is. Integers wrap; bool is or of and.

   TA, TB: in memory; T: in which it is computed, of 32 or 64 bits; TY: of y. MULTIPLY_ADD(a, b, c): c + a*b.
   Steps (ar, ac, br, bc) are in elements, of any sign; a batch is two axes, (outer, batch / outer), ... */
#pragma OPENCL FP_CONTRACT OFF
#ifdef FP64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif

#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)

#if defined(OR)
#define MULTIPLY_ADD(a, b, c) ((c) | ((a) & (b)))
#elif defined(FUSED)
#define MULTIPLY_ADD(a, b, c) fma(a, b, c)
#else
#define MULTIPLY_ADD(a, b, c) ((c) + (a) * (b))
#endif

/* Where product `at` of a batch begins; inner: the extent of its last axis. */
long product_at(long at, long inner, long outer_step, long inner_step) {
    const long outer = at / inner; /* (no %: beside / it becomes an instruction that Oclgrind lacks) */
    return outer * outer_step + (at - outer * inner) * inner_step;
}

#ifdef ON_CPU
/* ---- a tile of ROWS x COLUMNS in vector registers, reading b as panels of COLUMNS.

   V: the width of a vector; VECTORS of them are a row of the tile. With 16 registers of 32 bytes, or 32 of 64, a tile
   of 6 x 16 or 8 x 32 leaves as many as are needed to load b and to spread an element of a. */
#define COLUMNS (V * VECTORS)
#define VT CAT(T, V)
#define LOAD_V(p) CAT(vload, V)(0, p)
#define STORE_V(v, p) CAT(vstore, V)(v, 0, p)
#define TO_Y(v) CAT(convert_, CAT(TY, V))(v)

/* b as (products, panels, k, COLUMNS), with zeros beyond n. */
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void pack(
    __global const TB *b, long bo, long inner, long bos, long bis, long br, long bc, __global T *to, long n, long k, long depth) {
    const long panel = get_group_id(1), panels = get_num_groups(1), product = get_group_id(2);
    const long first = (long)get_group_id(0) * depth, last = first + depth < k ? first + depth : k;
    const long column = panel * COLUMNS, width = n - column < COLUMNS ? n - column : COLUMNS;
    __global const TB *from = b + bo + product_at(product, inner, bos, bis) + column * bc;
    to += (product * panels + panel) * k * COLUMNS;
    if (width == COLUMNS && bc == 1) {
        for (long i = first; i < last; i++)
            for (int v = 0; v < VECTORS; v++)
                STORE_V(CAT(convert_, VT)(LOAD_V(from + i * br + v * V)), to + i * COLUMNS + v * V);
    } else if (br == 1) { /* V columns at a time, so that what is fetched is used while it is near */
        for (long c = 0; c < COLUMNS; c++)
            for (long i = first; i < last; i++) to[i * COLUMNS + c] = c < width ? (T)from[i + c * bc] : (T)0;
    } else {
        for (long i = first; i < last; i++)
            for (long c = 0; c < COLUMNS; c++) to[i * COLUMNS + c] = c < width ? (T)from[i * br + c * bc] : (T)0;
    }
}

/* a as (products, tiles, k, ROWS), with the last row again beyond m: for an a whose columns lie in memory, which a tile
   would read from as many pages as it has. STACK tiles at a time, so that a page is read once. */
#define STACK 8
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void pack_rows(
    __global const TA *a, long ao, long inner, long aos, long ais, long ar, long ac, __global T *to, long m, long k, long depth) {
    const long tiles = (m + ROWS - 1) / ROWS, product = get_group_id(2), start = (long)get_group_id(1) * STACK;
    const long stack = tiles - start < STACK ? tiles - start : STACK;
    const long first = (long)get_group_id(0) * depth, last = first + depth < k ? first + depth : k;
    a += ao + product_at(product, inner, aos, ais);
    to += (product * tiles + start) * k * ROWS;
    for (long i = first; i < last; i++)
        for (long tile = 0; tile < stack; tile++) {
            const long row = (start + tile) * ROWS;
            __global const TA *from = a + i * ac + row * ar;
            __global T *into = to + (tile * k + i) * ROWS;
            if (ar == 1 && row + ROWS <= m)
                for (int r = 0; r < ROWS; r++) into[r] = (T)from[r];
            else
                for (int r = 0; r < ROWS; r++) into[r] = (T)from[(row + r < m ? r : m - 1 - row) * ar];
        }
}

/* a: rows ar and tiles of rows tile_step apart; b: (products, panels, k, ...), panels panel_step and rows row_step apart. A work-item takes `tiles` tiles of a panel. */
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void product(
    __global const TA *a, long ao, long inner, long aos, long ais, long tile_step, long ar, long ac, __global const T *b,
    long bo, long bos, long bis, long panel_step, long row_step, __global TY *y, long yo, long m, long n, long k, long tiles) {
    const long panel = get_group_id(1), at = get_group_id(2), column = panel * COLUMNS;
    a += ao + product_at(at, inner, aos, ais);
    b += bo + product_at(at, inner, bos, bis) + panel * panel_step;
    y += yo + at * m * n + column;
    for (long tile = 0; tile < tiles; tile++) {
        const long row = ((long)get_group_id(0) * tiles + tile) * ROWS;
        __global const TA *from[ROWS];
        VT sum[ROWS][VECTORS];
        if (row >= m) return;
        #pragma unroll
        for (int r = 0; r < ROWS; r++) {
            from[r] = a + row / ROWS * tile_step + (row + r < m ? r : m - 1 - row) * ar;
            #pragma unroll
            for (int v = 0; v < VECTORS; v++) sum[r][v] = (VT)0;
        }
        for (long i = 0; i < k; i++) {
            VT right[VECTORS];
            #pragma unroll
            for (int v = 0; v < VECTORS; v++) right[v] = LOAD_V(b + i * row_step + v * V);
            #pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const VT left = (VT)(T)from[r][i * ac];
                #pragma unroll
                for (int v = 0; v < VECTORS; v++) sum[r][v] = MULTIPLY_ADD(left, right[v], sum[r][v]);
            }
        }
        #pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (row + r >= m) continue;
            #pragma unroll
            for (int v = 0; v < VECTORS; v++) {
                __global TY *into = y + (row + r) * n + v * V;
                const long width = n - column - v * V;
                if (width >= V) {
                    STORE_V(TO_Y(sum[r][v]), into);
                } else {
                    TY one[V];
                    STORE_V(TO_Y(sum[r][v]), one);
                    for (int c = 0; c < width; c++) into[c] = one[c];
                }
            }
        }
    }
}

#else
/* ---- a tile of (GROUP_ROWS * ROWS) x (GROUP_COLUMNS * COLUMNS) for a work-group, DEPTH deep in local memory.

   Work-item (r, c) has rows r, r + GROUP_ROWS, ... and columns c, c + GROUP_COLUMNS, ...: neighbours read and write
   neighbours. a_across, b_across: neighbours in memory are along k in a, along n in b. */
#define TILE_ROWS (GROUP_ROWS * ROWS)
#define TILE_COLUMNS (GROUP_COLUMNS * COLUMNS)
#define GROUP (GROUP_ROWS * GROUP_COLUMNS)

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void product_tiles(
    __global const TA *a, long ao, long inner, long aos, long ais, long ar, long ac, __global const TB *b, long bo, long bos,
    long bis, long br, long bc, __global TY *y, long yo, long m, long n, long k, int a_across, int b_across) {
    __local T left[DEPTH][TILE_ROWS + 1], right[DEPTH][TILE_COLUMNS + 1];
    const int id = get_local_id(0), r0 = id / GROUP_COLUMNS, c0 = id - r0 * GROUP_COLUMNS;
    /* all along dimension 0: drivers that run on CUDA take fewer than 2^16 groups along the others */
    const long columns = (n + TILE_COLUMNS - 1) / TILE_COLUMNS, rows = (m + TILE_ROWS - 1) / TILE_ROWS;
    const long place = get_group_id(0), band = place / columns, at = band / rows;
    const long row = (band - at * rows) * TILE_ROWS, column = (place - band * columns) * TILE_COLUMNS;
    T sum[ROWS][COLUMNS];
    a += ao + product_at(at, inner, aos, ais);
    b += bo + product_at(at, inner, bos, bis);
    y += yo + at * m * n;
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLUMNS; c++) sum[r][c] = (T)0;
    for (long start = 0; start < k; start += DEPTH) {
        for (int e = id; e < TILE_ROWS * DEPTH; e += GROUP) {
            const int down = e / DEPTH, in = e / TILE_ROWS;
            const int r = a_across ? down : e - in * TILE_ROWS, i = a_across ? e - down * DEPTH : in;
            left[i][r] = row + r < m && start + i < k ? (T)a[(row + r) * ar + (start + i) * ac] : (T)0;
        }
        for (int e = id; e < TILE_COLUMNS * DEPTH; e += GROUP) {
            const int over = e / DEPTH, in = e / TILE_COLUMNS;
            const int c = b_across ? e - in * TILE_COLUMNS : over, i = b_across ? in : e - over * DEPTH;
            right[i][c] = column + c < n && start + i < k ? (T)b[(start + i) * br + (column + c) * bc] : (T)0;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int i = 0; i < DEPTH; i++) {
            T own[COLUMNS];
            for (int c = 0; c < COLUMNS; c++) own[c] = right[i][c0 + c * GROUP_COLUMNS];
            for (int r = 0; r < ROWS; r++) {
                const T factor = left[i][r0 + r * GROUP_ROWS];
                for (int c = 0; c < COLUMNS; c++) sum[r][c] = MULTIPLY_ADD(factor, own[c], sum[r][c]);
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLUMNS; c++) {
            const long i = row + r0 + r * GROUP_ROWS, j = column + c0 + c * GROUP_COLUMNS;
            if (i < m && j < n) y[i * n + j] = (TY)sum[r][c];
        }
}
#endif
