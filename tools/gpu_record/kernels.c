/* Kernels: libmxnet.so registers each by the address of its host stub, and launches it by that address. */
#include "record.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct { /* dim3 */
  unsigned x, y, z;
} Extent;

/* ---- registration, before main: some ten thousand kernels, looked up by address later */

typedef struct {
  const void *stub;
  const char *name; /* mangled */
} Kernel;
static Kernel *kernels;
static size_t kernel_count, kernel_room;
static int kernels_sorted = 1;
static pthread_mutex_t kernels_mutex = PTHREAD_MUTEX_INITIALIZER;

void **__cudaRegisterFatBinary(void *image) {
  void *handle;
  make_handle(&handle);
  return handle;
}
void __cudaRegisterFatBinaryEnd(void **handle) {}
void __cudaUnregisterFatBinary(void **handle) {}
char __cudaInitModule(void **handle) { return 1; }
void __cudaRegisterVar(void) {}

void __cudaRegisterFunction(void **handle, const char *stub, char *stub_again, const char *name) {
  pthread_mutex_lock(&kernels_mutex);
  if (kernel_count == kernel_room) {
    kernel_room = 2 * kernel_room + 4096;
    kernels = realloc(kernels, kernel_room * sizeof *kernels);
    if (!kernels) abort();
  }
  kernels[kernel_count++] = (Kernel){stub, name};
  kernels_sorted = 0;
  pthread_mutex_unlock(&kernels_mutex);
}

static int by_stub(const void *left, const void *right) {
  uintptr_t a = (uintptr_t)((const Kernel *)left)->stub, b = (uintptr_t)((const Kernel *)right)->stub;
  return (a > b) - (a < b);
}

static const char *kernel_name(const void *stub) {
  pthread_mutex_lock(&kernels_mutex);
  if (!kernels_sorted) qsort(kernels, kernel_count, sizeof *kernels, by_stub);
  kernels_sorted = 1;
  Kernel wanted = {stub, NULL};
  const Kernel *found = bsearch(&wanted, kernels, kernel_count, sizeof *kernels, by_stub);
  const char *name = found ? found->name : "unknown";
  pthread_mutex_unlock(&kernels_mutex);
  return name;
}

/* ---- launches: kernel<<<grid, block, shared, stream>>> pushes a configuration that the stub pops */

typedef struct {
  Extent grid, block;
  size_t shared;
  void *stream;
} Configuration;
static __thread Configuration pushed[8];
static __thread int pushed_count;

unsigned __cudaPushCallConfiguration(Extent grid, Extent block, size_t shared, void *stream) {
  if (pushed_count == COUNT_OF(pushed)) abort();
  pushed[pushed_count++] = (Configuration){grid, block, shared, stream};
  return 0;
}

int __cudaPopCallConfiguration(Extent *grid, Extent *block, size_t *shared, void **stream) {
  if (!pushed_count) abort();
  const Configuration *top = &pushed[--pushed_count];
  *grid = top->grid;
  *block = top->block;
  *shared = top->shared;
  *stream = top->stream;
  return 0;
}

/* How many elements a kernel works on, where its first arguments say so; else -1. index_t is int in this build. */
static long long kernel_elements(const char *name, void **arguments) {
  if (strstr(name, "mxnet_generic_kernel")) return *(const int *)arguments[0]; /* (int N, ...) */
  if (strstr(name, "13MapPlanKernel") || strstr(name, "18MapPlanLargeKernel")) {
    const int *shape = arguments[2]; /* (destination, int stride, Shape<2> shape, ...) */
    return (long long)shape[0] * shape[1];
  }
  return -1;
}

/* Whether a GPU would refuse a launch: an empty grid or block, or one that is too large (CUDA's table of limits). */
static int fits(Extent grid, Extent block, size_t shared) {
  if (!grid.x || !grid.y || !grid.z || !block.x || !block.y || !block.z) return 0;
  if (grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535) return 0;
  return block.z <= 64 && (uint64_t)block.x * block.y * block.z <= 1024 && shared <= 48 << 10;
}

int cudaLaunchKernel(const void *stub, Extent grid, Extent block, void **arguments, size_t shared, void *stream) {
  const char *name = kernel_name(stub);
  long long elements = kernel_elements(name, arguments);
  line_begin("cudaLaunchKernel");
  line_string("kernel", name);
  line_integers("grid", (int[]){(int)grid.x, (int)grid.y, (int)grid.z}, 3);
  line_integers("block", (int[]){(int)block.x, (int)block.y, (int)block.z}, 3);
  line_integer("shared", (long long)shared);
  if (elements >= 0) line_integer("elements", elements);
  if (!fits(grid, block, shared)) line_integer("invalid", 1);
  line_end();
  return 0;
}

/* ---- what CUB and MXNet ask about kernels before they launch them */

typedef struct { /* cudaFuncAttributes */
  size_t shared_bytes, constant_bytes, local_bytes;
  int threads_per_block, registers, ptx_version, binary_version, cache_mode, dynamic_shared_bytes, shared_carveout;
} FunctionAttributes;

int cudaFuncGetAttributes(FunctionAttributes *attributes, const void *stub) {
  *attributes = (FunctionAttributes){
      .threads_per_block = 1024,
      .registers = 32,
      .ptx_version = compute_capability(),
      .binary_version = compute_capability(),
      .dynamic_shared_bytes = 48 << 10,
  };
  return 0;
}

int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *stub, int block_size,
                                                           size_t shared, unsigned flags) {
  *blocks = block_size > 0 ? 2048 / block_size : 1; /* 2048 threads and 32 blocks a multiprocessor */
  if (*blocks < 1) *blocks = 1;
  if (*blocks > 32) *blocks = 32;
  return 0;
}
