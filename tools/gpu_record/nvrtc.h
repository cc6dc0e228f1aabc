/* What the driver asks about run-time compiled programs. */
#ifndef GPU_RECORD_NVRTC_H
#define GPU_RECORD_NVRTC_H

#pragma GCC visibility push(hidden)
/* The number of the program that gave this PTX; -1 for an image from elsewhere. */
int program_of_ptx(const char *ptx);
#pragma GCC visibility pop

#endif
