/* The CUDA driver, by which MXNet loads and launches what NVRTC compiled: fused pointwise operators and mx.rtc. */
#include "record.h"
#include "nvrtc.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
  int program; /* number of the program whose PTX it is */
} Module;
typedef struct {
  const char *name; /* mangled */
  int program;
} Function;

int cuDeviceGet(int *device, int ordinal) {
  *device = ordinal;
  return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { return make_handle(context); }
int cuGetErrorString(int error, const char **text) {
  *text = error ? "error of the recorder" : "no error";
  return 0;
}

static int load_module(const char *call, Module **module, const char *image) {
  *module = calloc(1, sizeof **module);
  if (!*module) abort();
  (*module)->program = program_of_ptx(image);
  line_begin(call);
  line_integer("program", (*module)->program);
  line_end();
  return 0;
}
int cuModuleLoadData(Module **module, const void *image) { return load_module("cuModuleLoadData", module, image); }
int cuModuleLoadDataEx(Module **module, const void *image, unsigned count, void *options, void **values) {
  return load_module("cuModuleLoadDataEx", module, image);
}
int cuModuleUnload(Module *module) {
  free(module);
  return 0;
}

int cuModuleGetFunction(Function **function, const Module *module, const char *name) {
  *function = malloc(sizeof **function); /* few, and used until the process ends */
  if (!*function) abort();
  **function = (Function){keep_text(name), module->program};
  return 0;
}

int cuLaunchKernel(const Function *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **arguments, void **extra) {
  line_begin("cuLaunchKernel");
  line_string("kernel", function->name);
  line_integer("program", function->program);
  line_integers("grid", (int[]){(int)grid_x, (int)grid_y, (int)grid_z}, 3);
  line_integers("block", (int[]){(int)block_x, (int)block_y, (int)block_z}, 3);
  line_integer("shared", shared);
  if (arguments && strstr(function->name, "FusedKernel_")) /* (size_t N, ...) */
    line_integer("elements", (long long)*(const size_t *)arguments[0]);
  line_end();
  return 0;
}
