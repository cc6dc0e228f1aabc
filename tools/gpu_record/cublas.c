/* cuBLAS: matrix products with their dtypes, compute type, math mode and sizes; the rest by name. */
#include "record.h"

typedef struct {
  int math; /* cublasMath_t */
} Blas;

static const char *dtype_name(int type) { /* cudaDataType_t */
  switch (type) {
    case 0: return "float32";
    case 1: return "float64";
    case 2: return "float16";
    case 3: return "int8";
    case 10: return "int32";
    case 14: return "bfloat16";
    default: return "unknown";
  }
}

static const char *compute_name(int type) { /* cublasComputeType_t, or cudaDataType_t from callers of CUDA 10 */
  switch (type) {
    case 64: case 65: return "float16";
    case 68: case 69: return "float32";
    case 70: case 71: return "float64";
    case 72: case 73: return "int32";
    case 74: return "float32 fast float16";
    case 75: return "float32 fast bfloat16";
    case 77: return "float32 fast tf32";
    default: return dtype_name(type);
  }
}

static const char *math_name(int math) {
  switch (math & 15) {
    case 0: return "default";
    case 1: return "tensor_op";
    case 2: return "pedantic";
    case 3: return "tf32_tensor_op";
    default: return "unknown";
  }
}

enum { FLOAT32 = 0, FLOAT64 = 1, FLOAT16 = 2, COMPUTE_FLOAT16 = 64, COMPUTE_FLOAT32 = 68, COMPUTE_FLOAT64 = 70 };

typedef struct {
  const char *call;
  const Blas *blas;
  int m, n, k, a, b, c, compute, batch;
} Product;

static int record_product(Product product) {
  line_begin(product.call);
  line_integer("m", product.m);
  line_integer("n", product.n);
  line_integer("k", product.k);
  line_integer("batch", product.batch);
  line_string("a", dtype_name(product.a));
  line_string("b", dtype_name(product.b));
  line_string("c", dtype_name(product.c));
  line_string("compute", compute_name(product.compute));
  line_string("math", math_name(product.blas->math));
  line_end();
  return 0;
}

int cublasCreate_v2(void **handle) { return make_handle(handle); }
ACCEPTED(cublasDestroy_v2)
ACCEPTED(cublasSetStream_v2)
ACCEPTED(cublasSetPointerMode_v2)

int cublasGetMathMode(Blas *blas, int *math) {
  *math = blas->math;
  return 0;
}
int cublasSetMathMode(Blas *blas, int math) {
  blas->math = math;
  return 0;
}

/* ---- products of one dtype */

#define GEMM(name, dtype, compute)                                                                              \
  int name(Blas *blas, int transpose_a, int transpose_b, int m, int n, int k, const void *alpha, const void *a, \
           int lda, const void *b, int ldb, const void *beta, void *c, int ldc) {                               \
    return record_product((Product){#name, blas, m, n, k, dtype, dtype, dtype, compute, 1});                    \
  }
GEMM(cublasSgemm_v2, FLOAT32, COMPUTE_FLOAT32)
GEMM(cublasDgemm_v2, FLOAT64, COMPUTE_FLOAT64)

#define STRIDED_GEMM(name, dtype, compute)                                                                      \
  int name(Blas *blas, int transpose_a, int transpose_b, int m, int n, int k, const void *alpha, const void *a, \
           int lda, long long stride_a, const void *b, int ldb, long long stride_b, const void *beta, void *c,  \
           int ldc, long long stride_c, int batch) {                                                            \
    return record_product((Product){#name, blas, m, n, k, dtype, dtype, dtype, compute, batch});                \
  }
STRIDED_GEMM(cublasHgemmStridedBatched, FLOAT16, COMPUTE_FLOAT16)
STRIDED_GEMM(cublasSgemmStridedBatched, FLOAT32, COMPUTE_FLOAT32)
STRIDED_GEMM(cublasDgemmStridedBatched, FLOAT64, COMPUTE_FLOAT64)

/* ---- products that are told their dtypes */

int cublasSgemmEx(Blas *blas, int transpose_a, int transpose_b, int m, int n, int k, const void *alpha, const void *a,
                  int a_type, int lda, const void *b, int b_type, int ldb, const void *beta, void *c, int c_type,
                  int ldc) {
  return record_product((Product){"cublasSgemmEx", blas, m, n, k, a_type, b_type, c_type, COMPUTE_FLOAT32, 1});
}

int cublasGemmEx(Blas *blas, int transpose_a, int transpose_b, int m, int n, int k, const void *alpha, const void *a,
                 int a_type, int lda, const void *b, int b_type, int ldb, const void *beta, void *c, int c_type,
                 int ldc, int compute, int algorithm) {
  return record_product((Product){"cublasGemmEx", blas, m, n, k, a_type, b_type, c_type, compute, 1});
}

int cublasGemmStridedBatchedEx(Blas *blas, int transpose_a, int transpose_b, int m, int n, int k, const void *alpha,
                               const void *a, int a_type, int lda, long long stride_a, const void *b, int b_type,
                               int ldb, long long stride_b, const void *beta, void *c, int c_type, int ldc,
                               long long stride_c, int batch, int compute, int algorithm) {
  return record_product(
      (Product){"cublasGemmStridedBatchedEx", blas, m, n, k, a_type, b_type, c_type, compute, batch});
}

/* ---- the rest: S is float32, D float64 */

RECORDED(cublasSdot_v2)
RECORDED(cublasDdot_v2)
RECORDED(cublasSgetrfBatched)
RECORDED(cublasDgetrfBatched)
RECORDED(cublasSgetriBatched)
RECORDED(cublasDgetriBatched)
RECORDED(cublasSsyrk_v2)
RECORDED(cublasDsyrk_v2)
RECORDED(cublasStrmm_v2)
RECORDED(cublasDtrmm_v2)
RECORDED(cublasStrsm_v2)
RECORDED(cublasDtrsm_v2)
