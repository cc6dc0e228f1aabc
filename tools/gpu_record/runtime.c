/* The CUDA runtime apart from kernels: devices, memory (which is the host's), copies (which are done), streams. */
#include "record.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101 }; /* cudaError_t */

/* ---- devices */

typedef struct { /* the beginning of cudaDeviceProp of CUDA 11; MXNet reads nothing behind it */
  char name[256], uuid[16], luid[8];
  unsigned luid_mask;
  size_t total_memory, shared_per_block;
  int registers_per_block, warp_size;
  size_t pitch;
  int threads_per_block, block_limit[3], grid_limit[3], clock_khz;
  size_t constant_memory;
  int major, minor;
  size_t texture_alignment, texture_pitch_alignment;
  int overlap, multiprocessors;
} DeviceProperties;

int cudaGetDeviceCount(int *count) {
  *count = gpu_count();
  return *count ? 0 : NO_DEVICE;
}

int cudaGetDevice(int *device) {
  *device = current_gpu;
  return 0;
}

int cudaSetDevice(int device) {
  if (device < 0 || device >= gpu_count()) return INVALID_DEVICE;
  current_gpu = device;
  return 0;
}

int cudaGetDeviceProperties(DeviceProperties *properties, int device) {
  *properties = (DeviceProperties){
      .total_memory = gpu_memory(),
      .shared_per_block = 48 << 10,
      .registers_per_block = 65536,
      .warp_size = 32,
      .pitch = 2147483647,
      .threads_per_block = 1024,
      .block_limit = {1024, 1024, 64},
      .grid_limit = {2147483647, 65535, 65535},
      .clock_khz = 1530000,
      .constant_memory = 65536,
      .major = compute_capability() / 10,
      .minor = compute_capability() % 10,
      .texture_alignment = 512,
      .texture_pitch_alignment = 32,
      .overlap = 1,
      .multiprocessors = 80,
  };
  snprintf(properties->name, sizeof properties->name, "recorded GPU, sm_%d", compute_capability());
  return 0;
}

int cudaDeviceGetAttribute(int *value, int attribute, int device) {
  switch (attribute) { /* cudaDeviceAttr, the same numbers as CUdevice_attribute */
    case 1: case 2: case 3: *value = 1024; break;  /* threads of a block; its x and y */
    case 4: *value = 64; break;                    /* its z */
    case 5: *value = 2147483647; break;            /* grid's x */
    case 6: case 7: *value = 65535; break;         /* grid's y and z */
    case 8: *value = 48 << 10; break;              /* shared memory of a block */
    case 9: case 12: case 82: *value = 65536; break; /* constant memory; registers of a block and a multiprocessor */
    case 10: *value = 32; break;                   /* warp */
    case 13: *value = 1530000; break;              /* clock in kHz */
    case 16: *value = 80; break;                   /* multiprocessors */
    case 39: *value = 2048; break;                 /* threads of a multiprocessor */
    case 75: *value = compute_capability() / 10; break;
    case 76: *value = compute_capability() % 10; break;
    case 81: case 97: *value = 96 << 10; break;    /* shared memory of a multiprocessor; of a block that opts in */
    case 95: *value = 1; break;                    /* cooperative launch */
    default: *value = 0;
  }
  return 0;
}

int cudaDeviceGetP2PAttribute(int *value, int attribute, int from, int to) {
  *value = 1;
  return 0;
}

int cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  *can = device != peer;
  return 0;
}

static int version(int *number) {
  *number = 11020; /* CUDA 11.2 */
  return 0;
}
int cudaDriverGetVersion(int *number) { return version(number); }
int cudaRuntimeGetVersion(int *number) { return version(number); }

ACCEPTED(cudaDeviceEnablePeerAccess)
RECORDED(cudaDeviceSynchronize)
ACCEPTED(cudaGetLastError)
ACCEPTED(cudaPeekAtLastError)

const char *cudaGetErrorName(int error) { return error ? "cudaError" : "cudaSuccess"; }

const char *cudaGetErrorString(int error) {
  switch (error) {
    case 0: return "no error";
    case OUT_OF_MEMORY: return "out of memory (of the recorded GPU: GPU_RECORD_MEMORY)";
    case NO_DEVICE: return "no CUDA-capable device (GPU_RECORD_GPUS=0)";
    case INVALID_DEVICE: return "invalid device ordinal (GPU_RECORD_GPUS says how many there are)";
    case CUDA_NOT_SUPPORTED: return "the recorder does not support this (CUDA graphs: unset MXNET_ENABLE_CUDA_GRAPHS)";
    default: return "error of the recorder";
  }
}

/* ---- memory: zeroed, aligned as CUDA's, each block with a header before it */

enum { ALIGNMENT = 512, MAGIC = 0x67707572 };
typedef struct {
  void *block;
  size_t bytes;
  int device, magic;
} Header;
static pthread_mutex_t memory_mutex = PTHREAD_MUTEX_INITIALIZER;
static size_t used[64]; /* bytes of each device */

static int reserve(int device, size_t bytes) {
  pthread_mutex_lock(&memory_mutex);
  int enough = bytes <= gpu_memory() - used[device % COUNT_OF(used)];
  if (enough) used[device % COUNT_OF(used)] += bytes;
  pthread_mutex_unlock(&memory_mutex);
  return enough;
}

static void release(int device, size_t bytes) {
  pthread_mutex_lock(&memory_mutex);
  used[device % COUNT_OF(used)] -= bytes;
  pthread_mutex_unlock(&memory_mutex);
}

/* The memory, or NULL where there is not enough. Large blocks are not backed by the host before they are written. */
static void *allocate(size_t bytes) {
  if (!reserve(current_gpu, bytes)) return NULL;
  char *block = calloc(1, bytes + sizeof(Header) + ALIGNMENT);
  if (!block) {
    release(current_gpu, bytes);
    return NULL;
  }
  uintptr_t start = ((uintptr_t)block + sizeof(Header) + ALIGNMENT - 1) & ~(uintptr_t)(ALIGNMENT - 1);
  ((Header *)start)[-1] = (Header){block, bytes, current_gpu, MAGIC};
  return (void *)start;
}

int cudaMalloc(void **memory, size_t bytes) {
  *memory = allocate(bytes);
  line_begin("cudaMalloc");
  line_integer("bytes", *memory ? (long long)bytes : 0);
  if (!*memory) line_integer("refused", (long long)bytes);
  line_end();
  return *memory ? 0 : OUT_OF_MEMORY;
}

int cudaMallocPitch(void **memory, size_t *pitch, size_t width, size_t height) {
  *pitch = (width + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
  return cudaMalloc(memory, *pitch * height);
}

int cudaFree(void *memory) {
  size_t bytes = 0;
  if (memory) {
    Header *header = (Header *)memory - 1;
    if (header->magic != MAGIC) return 1; /* cudaErrorInvalidValue */
    bytes = header->bytes;
    header->magic = 0;
    release(header->device, bytes);
    free(header->block);
  }
  line_begin("cudaFree");
  line_integer("bytes", (long long)bytes);
  line_end();
  return 0;
}

int cudaHostAlloc(void **memory, size_t bytes, unsigned flags) {
  *memory = calloc(1, bytes ? bytes : 1);
  return *memory ? 0 : OUT_OF_MEMORY;
}

int cudaFreeHost(void *memory) {
  free(memory);
  return 0;
}

int cudaMemGetInfo(size_t *free_bytes, size_t *total) {
  pthread_mutex_lock(&memory_mutex);
  *total = gpu_memory();
  *free_bytes = *total - used[current_gpu % COUNT_OF(used)];
  pthread_mutex_unlock(&memory_mutex);
  return 0;
}

/* ---- copies */

enum { DEVICE_TO_HOST = 2 }; /* cudaMemcpyKind */

static void record_copy(const char *call, int kind, size_t bytes) {
  static const char *const kinds[] = {"host to host", "host to device", "device to host", "device to device"};
  line_begin(call);
  line_string("kind", kind >= 0 && kind < COUNT_OF(kinds) ? kinds[kind] : "default");
  line_integer("bytes", (long long)bytes);
  line_end();
}

static int copy(const char *call, void *destination, const void *source, size_t bytes, int kind) {
  record_copy(call, kind, bytes);
  memmove(destination, source, bytes);
  return 0;
}

int cudaMemcpy(void *destination, const void *source, size_t bytes, int kind) {
  return copy("cudaMemcpy", destination, source, bytes, kind);
}

int cudaMemcpyAsync(void *destination, const void *source, size_t bytes, int kind, void *stream) {
  return copy("cudaMemcpyAsync", destination, source, bytes, kind);
}

int cudaMemcpyPeerAsync(void *destination, int to, const void *source, int from, size_t bytes, void *stream) {
  line_begin("cudaMemcpyPeerAsync");
  line_string("kind", "peer to peer");
  line_integer("bytes", (long long)bytes);
  line_integer("to", to);
  line_integer("from", from);
  line_end();
  memmove(destination, source, bytes);
  return 0;
}

/* NDArray.asnumpy, and every other copy of an NDArray to the host, comes here: so this one delivers. */
int cudaMemcpy2DAsync(void *destination, size_t to_pitch, const void *source, size_t from_pitch, size_t width,
                      size_t height, int kind, void *stream) {
  int delivered = kind == DEVICE_TO_HOST && delivers(width * height);
  record_copy("cudaMemcpy2DAsync", kind, width * height);
  for (size_t row = 0; row < height; row++) {
    char *to = (char *)destination + row * to_pitch;
    if (delivered) deliver_row(to, row * width / sizeof(float), width);
    else memmove(to, (const char *)source + row * from_pitch, width);
  }
  return 0;
}

int cudaMemsetAsync(void *memory, int value, size_t bytes, void *stream) {
  line_begin("cudaMemsetAsync");
  line_integer("bytes", (long long)bytes);
  line_end();
  memset(memory, value, bytes);
  return 0;
}

/* ---- streams and events: all is done at once, so there is nothing to wait for */

int cudaStreamCreate(void **stream) { return make_handle(stream); }
int cudaEventCreateWithFlags(void **event, unsigned flags) { return make_handle(event); }
int cudaStreamDestroy(void *stream) {
  free(stream);
  return 0;
}
int cudaEventDestroy(void *event) {
  free(event);
  return 0;
}
RECORDED(cudaStreamSynchronize)
ACCEPTED(cudaStreamWaitEvent)
ACCEPTED(cudaEventRecord)

/* ---- CUDA graphs: a captured launch would be recorded once and run many times */

REFUSED(cudaStreamBeginCapture)
REFUSED(cudaStreamEndCapture)
REFUSED(cudaGraphDestroy)
REFUSED(cudaGraphExecDestroy)
REFUSED(cudaGraphExecUpdate)
REFUSED(cudaGraphGetNodes)
REFUSED(cudaGraphInstantiate)
REFUSED(cudaGraphLaunch)
REFUSED(cudaGraphMemcpyNodeGetParams)
REFUSED(cudaGraphMemsetNodeGetParams)
REFUSED(cuGraphKernelNodeGetParams)
REFUSED(cuGraphNodeGetType)
