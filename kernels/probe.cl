// What a device must compute before it is used: arithmetic, local memory, a barrier and an offset.
#pragma OPENCL FP_CONTRACT OFF

__kernel void probe(__global const float *a, __global float *y, __local float *tile, const long offset, const int n)
{
    const int i = (int)get_global_id(0), k = (int)get_local_id(0), width = (int)get_local_size(0);
    tile[k] = i < n ? a[offset + i] : 0.0f;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (i < n)
        y[i] = tile[k] * 2.0f + tile[width - 1 - k];
}
