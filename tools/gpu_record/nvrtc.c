/* NVRTC: sources are recorded, and compiled where GPU_RECORD_NVRTC names a real libnvrtc.so.11.2, which needs no GPU.
 *
 * Without it every compilation succeeds unseen ("compiled": 0), and the PTX is the number of the program.
 */
#define _GNU_SOURCE
#include "nvrtc.h"
#include "record.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INVALID_PROGRAM = 4 }; /* nvrtcResult */

typedef struct {
  int number;
  char *source, *name;
  void *real; /* the program of the real library */
} Program;

/* ---- the real library */

static void *real_library;
static pthread_once_t real_library_once = PTHREAD_ONCE_INIT;

static void open_real_library(void) {
  const char *path = getenv("GPU_RECORD_NVRTC");
  if (!path || !*path) return;
  /* It looks up its own functions, not those of the same names here. */
  real_library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (!real_library) fprintf(stderr, "GPU_RECORD_NVRTC=%s cannot be loaded: %s\n", path, dlerror());
}

static void *real_function(const char *name) {
  pthread_once(&real_library_once, open_real_library);
  if (!real_library) return NULL;
  void *function = dlsym(real_library, name);
  if (!function) fprintf(stderr, "GPU_RECORD_NVRTC has no %s\n", name);
  return function;
}

/* Declares `real`, the function of the real library of this name and type, or NULL. */
#define REAL(name, ...)     \
  int (*real)(__VA_ARGS__); \
  *(void **)&real = real_function(name)

/* ---- which program a PTX comes from */

typedef struct Ptx {
  struct Ptx *next;
  uint64_t hash;
  int program;
} Ptx;
static Ptx *known_ptx;
static pthread_mutex_t ptx_mutex = PTHREAD_MUTEX_INITIALIZER;

static uint64_t hash_text(const char *text) { /* FNV-1a */
  uint64_t hash = 14695981039346656037u;
  for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 1099511628211u;
  return hash;
}

static void remember_ptx(const char *text, int program) {
  Ptx *entry = malloc(sizeof *entry);
  if (!entry) abort();
  pthread_mutex_lock(&ptx_mutex);
  *entry = (Ptx){known_ptx, hash_text(text), program};
  known_ptx = entry;
  pthread_mutex_unlock(&ptx_mutex);
}

int program_of_ptx(const char *ptx) {
  uint64_t hash = hash_text(ptx);
  pthread_mutex_lock(&ptx_mutex);
  const Ptx *entry = known_ptx;
  while (entry && entry->hash != hash) entry = entry->next;
  int program = entry ? entry->program : -1;
  pthread_mutex_unlock(&ptx_mutex);
  return program;
}

/* ---- the library */

int nvrtcCreateProgram(Program **program, const char *source, const char *name, int count, const char *const *headers,
                       const char *const *includes) {
  static int programs;
  REAL("nvrtcCreateProgram", void **, const char *, const char *, int, const char *const *, const char *const *);
  Program *made = calloc(1, sizeof *made);
  if (!made) abort();
  made->number = __atomic_fetch_add(&programs, 1, __ATOMIC_RELAXED);
  made->source = strdup(source);
  made->name = strdup(name ? name : "");
  *program = made;
  return real ? real(&made->real, source, name, count, headers, includes) : 0;
}

int nvrtcDestroyProgram(Program **program) {
  REAL("nvrtcDestroyProgram", void **);
  if (!program || !*program) return INVALID_PROGRAM;
  if (real) real(&(*program)->real);
  free((*program)->source);
  free((*program)->name);
  free(*program);
  *program = NULL;
  return 0;
}

int nvrtcAddNameExpression(Program *program, const char *expression) {
  REAL("nvrtcAddNameExpression", void *, const char *);
  return real ? real(program->real, expression) : 0;
}

int nvrtcCompileProgram(Program *program, int count, const char *const *options) {
  REAL("nvrtcCompileProgram", void *, int, const char *const *);
  int status = real ? real(program->real, count, options) : 0;
  line_begin("nvrtcCompileProgram");
  line_integer("program", program->number);
  line_string("name", program->name);
  line_integer("compiled", real != NULL);
  line_integer("status", status);
  line_string("source", program->source);
  line_end();
  return status;
}

int nvrtcGetLoweredName(Program *program, const char *expression, const char **lowered) {
  REAL("nvrtcGetLoweredName", void *, const char *, const char **);
  if (real) return real(program->real, expression, lowered);
  *lowered = keep_text(expression);
  return 0;
}

#define UNSEEN_PTX_BYTES 16

int nvrtcGetPTXSize(Program *program, size_t *bytes) {
  REAL("nvrtcGetPTXSize", void *, size_t *);
  *bytes = UNSEEN_PTX_BYTES;
  return real ? real(program->real, bytes) : 0;
}

int nvrtcGetPTX(Program *program, char *ptx) {
  REAL("nvrtcGetPTX", void *, char *);
  int status = 0;
  if (real) status = real(program->real, ptx);
  else snprintf(ptx, UNSEEN_PTX_BYTES, "%d", program->number);
  if (!status) remember_ptx(ptx, program->number);
  return status;
}

int nvrtcGetProgramLogSize(Program *program, size_t *bytes) {
  REAL("nvrtcGetProgramLogSize", void *, size_t *);
  *bytes = 1;
  return real ? real(program->real, bytes) : 0;
}

int nvrtcGetProgramLog(Program *program, char *log) {
  REAL("nvrtcGetProgramLog", void *, char *);
  *log = 0;
  return real ? real(program->real, log) : 0;
}

const char *nvrtcGetErrorString(int error) { return error ? "NVRTC error, see the log" : "NVRTC_SUCCESS"; }
