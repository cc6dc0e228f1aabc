/* Descriptors of cuDNN 8.1, which remember what was set, and how they are written down. */
#ifndef GPU_RECORD_CUDNN_H
#define GPU_RECORD_CUDNN_H

#include "record.h"

typedef struct { /* of a tensor, a filter or an RNN's data */
  int dtype, count, dims[8], strides[8];
} Tensor;

#define DNN_WORKSPACE 1024 /* bytes; nothing is written there */

#pragma GCC visibility push(hidden)

const char *dnn_dtype(int dtype);
size_t dnn_dtype_bytes(int dtype);
const char *dnn_math(int math);
void line_tensor(const char *key, const Tensor *tensor);
int record_tensors(const char *call, const char *first_key, const Tensor *first, const char *second_key,
                   const Tensor *second);

#pragma GCC visibility pop

/* cudnnCreate...Descriptor and cudnnDestroy...Descriptor. */
#define DESCRIPTOR(kind, Type)                            \
  int cudnnCreate##kind##Descriptor(Type **made) {        \
    *made = calloc(1, sizeof **made);                     \
    return *made ? 0 : 2; /* CUDNN_STATUS_ALLOC_FAILED */ \
  }                                                       \
  int cudnnDestroy##kind##Descriptor(Type *old) {         \
    free(old);                                            \
    return 0;                                             \
  }

#endif
