/* Lines of the record and how a process steers them: where they go, marks, and what the host reads of flags. */
#define _GNU_SOURCE
#include "record.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- settings: read once, from the environment */

static long long setting(const char *name, long long otherwise) {
  const char *text = getenv(name);
  return text && *text ? atoll(text) : otherwise;
}

int gpu_count(void) {
  static int count = -1;
  if (count < 0) count = (int)setting("GPU_RECORD_GPUS", 1);
  return count;
}

int compute_capability(void) {
  static int capability;
  if (!capability) capability = (int)setting("GPU_RECORD_COMPUTE_CAPABILITY", 70);
  return capability;
}

size_t gpu_memory(void) {
  static size_t bytes;
  if (!bytes) bytes = (size_t)setting("GPU_RECORD_MEMORY", 32LL << 30);
  return bytes;
}

__thread int current_gpu;

/* ---- the file: appended to line by line, so that a crash loses nothing and a reader may come at any time */

static pthread_mutex_t file_mutex = PTHREAD_MUTEX_INITIALIZER;
static int file = -1;
static int file_chosen;

static int open_file(const char *path) { return open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666); }

static void choose_file(void) {
  const char *path = getenv("GPU_RECORD");
  file_chosen = 1;
  if (!path || !*path) return;
  file = open_file(path);
  if (file < 0) fprintf(stderr, "GPU_RECORD=%s cannot be written: %s\n", path, strerror(errno));
}

static void write_all(const char *text, size_t size) {
  pthread_mutex_lock(&file_mutex);
  if (!file_chosen) choose_file();
  while (file >= 0 && size) {
    ssize_t done = write(file, text, size);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) {
      fprintf(stderr, "the record ends here, it cannot be written: %s\n", strerror(errno));
      close(file);
      file = -1;
      break;
    }
    text += done;
    size -= (size_t)done;
  }
  pthread_mutex_unlock(&file_mutex);
}

/* ---- a line */

typedef struct {
  char *text;
  size_t used, size;
  int fields; /* of the innermost object: whether the next one needs a comma */
} Line;
static __thread Line line;

static void append(const char *text, size_t count) {
  if (line.used + count > line.size) {
    line.size = 2 * (line.used + count) + 1024;
    line.text = realloc(line.text, line.size);
    if (!line.text) abort();
  }
  memcpy(line.text + line.used, text, count);
  line.used += count;
}

__attribute__((format(printf, 1, 2))) static void print(const char *format, ...) {
  char text[64];
  va_list arguments;
  va_start(arguments, format);
  int count = vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  append(text, (size_t)count);
}

static void append_quoted(const char *text) {
  append("\"", 1);
  for (; *text; text++) {
    unsigned char c = (unsigned char)*text;
    if (c < 32) {
      print("\\u%04x", c);
      continue;
    }
    if (c == '"' || c == '\\') append("\\", 1);
    append(text, 1);
  }
  append("\"", 1);
}

static void append_key(const char *key) {
  if (line.fields++) append(",", 1);
  append_quoted(key);
  append(":", 1);
}

void line_integer(const char *key, long long value) {
  append_key(key);
  print("%lld", value);
}

void line_string(const char *key, const char *value) {
  append_key(key);
  append_quoted(value);
}

void line_integers(const char *key, const int *values, int count) {
  append_key(key);
  append("[", 1);
  for (int i = 0; i < count; i++) print(i ? ",%d" : "%d", values[i]);
  append("]", 1);
}

void line_object(const char *key) {
  append_key(key);
  append("{", 1);
  line.fields = 0;
}

void line_close(void) {
  append("}", 1);
  line.fields = 1;
}

void line_begin(const char *call) {
  static __thread int thread;
  if (!thread) thread = (int)syscall(SYS_gettid);
  line.used = 0;
  line.fields = 0;
  append("{", 1);
  line_string("call", call);
  line_integer("thread", thread);
  line_integer("device", current_gpu);
  const char *name = current_operator();
  if (name) line_string("operator", name);
}

void line_end(void) {
  append("}\n", 2);
  write_all(line.text, line.used);
}

int line_alone(const char *call) {
  line_begin(call);
  line_end();
  return 0;
}

/* ---- small things that several libraries need */

const char *keep_text(const char *text) {
  static struct Kept {
    struct Kept *next;
    char text[];
  } *kept;
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&mutex);
  struct Kept *found = kept;
  while (found && strcmp(found->text, text)) found = found->next;
  if (!found) {
    found = malloc(sizeof *found + strlen(text) + 1);
    if (!found) abort();
    strcpy(found->text, text);
    found->next = kept;
    kept = found;
  }
  pthread_mutex_unlock(&mutex);
  return found->text;
}

int make_handle(void **handle) {
  *handle = calloc(1, 64);
  return *handle ? 0 : 2;
}

/* ---- steering, by ctypes: tools/gpu_record/control.py */

/* Writes a mark: what follows belongs to the section of this name. */
void gpu_record_mark(const char *name) {
  line_begin("mark");
  line_string("name", name);
  line_end();
}

/* Goes on in another file; returns 0, or the errno of what is wrong with the path. */
int gpu_record_open(const char *path) {
  int opened = open_file(path);
  if (opened < 0) return errno;
  pthread_mutex_lock(&file_mutex);
  if (file >= 0) close(file);
  file = opened;
  file_chosen = 1;
  pthread_mutex_unlock(&file_mutex);
  return 0;
}

#define DELIVERED_BYTES 64 /* the largest copy that counts as flags */
static pthread_mutex_t delivery_mutex = PTHREAD_MUTEX_INITIALIZER;
static float delivered[DELIVERED_BYTES / sizeof(float)];
static int delivering;

/* From now on the host reads these floats, and 1 after them, from every copy of at most 64 bytes to the host;
 * with a count below 0 what the memory holds. Kernels do not run, so a flag's memory holds nothing of worth. */
void gpu_record_deliver(const float *values, int count) {
  pthread_mutex_lock(&delivery_mutex);
  delivering = count >= 0;
  for (int i = 0; i < COUNT_OF(delivered); i++) delivered[i] = i < count ? values[i] : 1.0f;
  pthread_mutex_unlock(&delivery_mutex);
}

int delivers(size_t bytes) { return delivering && bytes <= DELIVERED_BYTES && bytes % sizeof(float) == 0; }

void deliver_row(void *destination, size_t first_float, size_t bytes) {
  pthread_mutex_lock(&delivery_mutex);
  memcpy(destination, delivered + first_float, bytes);
  pthread_mutex_unlock(&delivery_mutex);
}
