/* cuSOLVER, cuFFT, cuRAND, NCCL: recorded by name. NVTX: which operator MXNet runs, while its profiler does. */
#include "record.h"

#include <pthread.h>
#include <stdlib.h>

/* ---- cuSOLVER: factorizations, in float32 (S) and float64 (D), each with the size of its workspace */

int cusolverDnCreate(void **handle) { return make_handle(handle); }
ACCEPTED(cusolverDnDestroy)
ACCEPTED(cusolverDnSetStream)

enum { WORKSPACE = 1024 }; /* elements; nothing is written there */

#define SIZED(call, ...)                              \
  RECORDED(call)                                      \
  int call##_bufferSize(__VA_ARGS__, int *elements) { \
    *elements = WORKSPACE;                            \
    return 0;                                         \
  }
#define SOLVER(p)                                                                                            \
  SIZED(cusolverDn##p##geqrf, void *handle, int m, int n, void *a, int lda)                                  \
  SIZED(cusolverDn##p##getrf, void *handle, int m, int n, void *a, int lda)                                  \
  SIZED(cusolverDn##p##gesvd, void *handle, int m, int n)                                                    \
  SIZED(cusolverDn##p##orgqr, void *handle, int m, int n, int k, const void *a, int lda, const void *tau)    \
  SIZED(cusolverDn##p##potrf, void *handle, int uplo, int n, void *a, int lda)                               \
  SIZED(cusolverDn##p##syevd, void *handle, int job, int uplo, int n, const void *a, int lda, const void *w) \
  RECORDED(cusolverDn##p##getrs)
SOLVER(S)
SOLVER(D)

/* ---- cuFFT */

int cufftPlanMany(int *plan) {
  *plan = 1;
  return 0;
}
RECORDED(cufftExecC2C)
ACCEPTED(cufftDestroy)

/* ---- cuRAND: numbers are not drawn, so random tensors hold what the memory held */

int curandCreateGenerator(void **generator, int type) { return make_handle(generator); }
ACCEPTED(curandDestroyGenerator)
ACCEPTED(curandSetGeneratorOffset)
ACCEPTED(curandSetPseudoRandomGeneratorSeed)
ACCEPTED(curandSetStream)
RECORDED(curandGenerate)
RECORDED(curandGenerateNormal)
RECORDED(curandGenerateNormalDouble)
RECORDED(curandGenerateUniform)
RECORDED(curandGenerateUniformDouble)

/* ---- NCCL */

static int record_collective(const char *call, size_t count, int type) {
  static const char *const names[] = {"int8",   "uint8",   "int32",   "uint32",  "int64",
                                      "uint64", "float16", "float32", "float64", "bfloat16"}; /* ncclDataType_t */
  line_begin(call);
  line_integer("elements", (long long)count);
  line_string("dtype", type >= 0 && type < COUNT_OF(names) ? names[type] : "unknown");
  line_end();
  return 0;
}

int ncclCommInitAll(void **communicators, int count, const int *devices) {
  for (int i = 0; i < count; i++) make_handle(&communicators[i]);
  return 0;
}
ACCEPTED(ncclCommDestroy)
ACCEPTED(ncclGroupStart)
ACCEPTED(ncclGroupEnd)
int ncclBcast(void *buffer, size_t count, int type, int root, void *communicator, void *stream) {
  return record_collective("ncclBcast", count, type);
}
int ncclReduce(const void *from, void *to, size_t count, int type, int op, int root, void *communicator, void *stream) {
  return record_collective("ncclReduce", count, type);
}
const char *ncclGetErrorString(int error) { return error ? "NCCL error" : "no error"; }

/* ---- NVTX: open ranges of all threads, the latest first. A range may be ended by another thread. */

typedef struct Range {
  struct Range *next;
  uint64_t id;
  const char *name;
  pthread_t thread;
} Range;
static Range *ranges;
static uint64_t last_range;
static pthread_mutex_t ranges_mutex = PTHREAD_MUTEX_INITIALIZER;

uint64_t nvtxRangeStartA(const char *name) {
  Range *range = malloc(sizeof *range);
  if (!range) abort();
  const char *kept = keep_text(name);
  pthread_mutex_lock(&ranges_mutex);
  uint64_t id = ++last_range;
  *range = (Range){ranges, id, kept, pthread_self()};
  ranges = range;
  pthread_mutex_unlock(&ranges_mutex);
  return id;
}

void nvtxRangeEnd(uint64_t id) {
  pthread_mutex_lock(&ranges_mutex);
  Range **place = &ranges;
  while (*place && (*place)->id != id) place = &(*place)->next;
  Range *ended = *place;
  if (ended) *place = ended->next;
  pthread_mutex_unlock(&ranges_mutex);
  free(ended);
}

const char *current_operator(void) {
  pthread_mutex_lock(&ranges_mutex);
  const Range *range = ranges;
  while (range && !pthread_equal(range->thread, pthread_self())) range = range->next;
  const char *name = range ? range->name : NULL;
  pthread_mutex_unlock(&ranges_mutex);
  return name;
}
