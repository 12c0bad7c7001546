/* The least that launching bound kernels costs on a device: a loop over clEnqueueNDRangeKernel, whose address is given,
   for the loader of OpenCL that Python's binding brings has no headers. Compiled and loaded by rivals.py. */
#include <stddef.h>
#include <stdint.h>

typedef int32_t (*enqueue_type)(
    void *queue, void *kernel, uint32_t dims, const size_t *offset, const size_t *whole, const size_t *local,
    uint32_t waited, const void *events, void *event);

/* Enqueue n kernels in order. whole, local: three sizes for each. The error of the first that fails, or 0. */
int32_t launch_all(enqueue_type enqueue, void *queue, int64_t n, void **kernels, const uint32_t *dims,
                   const size_t *whole, const size_t *local) {
    for (int64_t i = 0; i < n; i++) {
        const int32_t error = enqueue(queue, kernels[i], dims[i], NULL, whole + 3 * i, local + 3 * i, 0, NULL, NULL);
        if (error) return error;
    }
    return 0;
}
