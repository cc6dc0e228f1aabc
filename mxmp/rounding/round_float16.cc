// Two operators that round float32 arrays to float16's grid, with the bits of MXNet's Cast there and back.
//
// They are for MXNet 1.9.1 on CPU, and use its classes, not lib_api.h: an operator of that interface is not told to add
// to a gradient, and its backward pass keeps its input and its output alive. MXNet's wheels are built with GCC 4.8, so
// that nothing here may touch what has changed since in the standard library: std::unordered_map, within nnvm::Node,
// and std::function with arguments that are passed by value.
//
// A network has to compute the same bits with these operators as with Cast, so they are like Cast in all that the rest
// of it notices:
// - What they write is in the default layout, in place too. In oneDNN's layouts a BatchNorm behind them would take its
//   sums in another order.
// - They infer storage types as Flatten does (MKLDNNStorageType in src/operator/nn/mkldnn/mkldnn_base-inl.h), which
//   takes unknown ones for the default. _copy's ElemwiseStorageType leaves them unknown: in the backward pass of
//   Dense(x) + label one node then stayed so, and MXNet failed ("storage_type_num_unknown_nodes").

#include <dmlc/logging.h>  // before mshadow/logging.h, whose CHECK_EQ ends the process
#include <mxnet/op_attr_types.h>
#include <nnvm/op.h>
#include <nnvm/op_attr_types.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace mxnet {

namespace op {

// src/operator/operator_common.h
std::vector<nnvm::NodeEntry> MakeGradNode(const char*, const nnvm::ObjectPtr&, const std::vector<nnvm::NodeEntry>&,
                                          const std::unordered_map<std::string, std::string>&);

}  // namespace op
}  // namespace mxnet

// As MXNet has compiled them: see above.
extern template nnvm::Op& nnvm::Op::set_attr<mxnet::FInferShape>(const std::string&, const mxnet::FInferShape&, int);
extern template nnvm::Op& nnvm::Op::set_attr<nnvm::FInferType>(const std::string&, const nnvm::FInferType&, int);
extern template nnvm::Op& nnvm::Op::set_attr<mxnet::FInferStorageType>(const std::string&,
                                                                       const mxnet::FInferStorageType&, int);
extern template nnvm::Op& nnvm::Op::set_attr<nnvm::FInplaceOption>(const std::string&, const nnvm::FInplaceOption&,
                                                                   int);
extern template nnvm::Op& nnvm::Op::set_attr<mxnet::FComputeEx>(const std::string&, const mxnet::FComputeEx&, int);
extern template nnvm::Op& nnvm::Op::set_attr<mxnet::FCompute>(const std::string&, const mxnet::FCompute&, int);
extern template nnvm::Op& nnvm::Op::set_attr<nnvm::FGradient>(const std::string&, const nnvm::FGradient&, int);

namespace {

using mxnet::NDArray;

// Round by integers and one float32 addition: right on every processor.
void round_by_bits(const float* source, float* target, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, source + i, 4);
    const uint32_t sign = bits & 0x80000000u, size = bits & 0x7fffffffu;
    uint32_t rounded = (size + 0xfffu + ((size >> 13) & 1u)) & 0xffffe000u;
    if (size < 0x38800000u) {  // below 2^-14 the grid's step is 2^-24, as float32's is from 0.5 to 1
      float small;
      std::memcpy(&small, &size, 4);
      small = (small + 0.5f) - 0.5f;
      std::memcpy(&rounded, &small, 4);
    } else if (size > 0x7f800000u) {
      rounded = (size & 0xffffe000u) | 0x00400000u;  // NaN
    } else if (size >= 0x477ff000u) {
      rounded = 0x7f800000u;  // from 65520 on
    }
    rounded |= sign;
    std::memcpy(target + i, &rounded, 4);
  }
}

#if defined(__x86_64__)
typedef float Floats __attribute__((vector_size(32)));
typedef short Halves __attribute__((vector_size(16)));

__attribute__((target("avx,f16c"))) void round_by_f16c(const float* source, float* target, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    Floats values;
    std::memcpy(&values, source + i, sizeof values);
    const Halves halves = __builtin_ia32_vcvtps2ph256(values, 0);  // to nearest, ties to even
    values = __builtin_ia32_vcvtph2ps256(halves);
    std::memcpy(target + i, &values, sizeof values);
  }
  round_by_bits(source + i, target + i, n - i);
}
#endif

using Kernel = void (*)(const float*, float*, int64_t);

Kernel fastest() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("f16c")) return round_by_f16c;
#endif
  return round_by_bits;
}

const Kernel kernel = fastest();

// Round an array to another, or in place, with the threads that MXNet has given to this one.
template <bool as_sum>
void round_array(const float* source, float* target, int64_t n) {
  constexpr int64_t block = 1 << 10;
#pragma omp parallel for schedule(static) if (n > 32 * block)
  for (int64_t begin = 0; begin < n; begin += block) {
    const int64_t size = std::min(block, n - begin);
    const float* x = source + begin;
    float* y = target + begin;
    if (!as_sum) {
      kernel(x, y, size);
      continue;
    }
    float rounded[block];
    kernel(x, rounded, size);
    // x + (round(x) - x), which passes/emulate.py writes with casts: 0 of -0, and NaN of what is infinite.
    for (int64_t i = 0; i < size; ++i) y[i] = x[i] + (rounded[i] - x[i]);
  }
}

template <bool as_sum>
void compute(const nnvm::NodeAttrs&, const mxnet::OpContext&, const std::vector<mxnet::TBlob>& in,
             const std::vector<mxnet::OpReqType>& req, const std::vector<mxnet::TBlob>& out) {
  if (req[0] == mxnet::kNullOp) return;
  CHECK_EQ(in[0].type_flag_, mshadow::kFloat32) << "only float32 is rounded to float16's grid";
  const float* source = static_cast<const float*>(in[0].dptr_);
  float* target = static_cast<float*>(out[0].dptr_);
  const int64_t n = in[0].shape_.Size();
  if (req[0] != mxnet::kAddTo) return round_array<as_sum>(source, target, n);
  std::vector<float> rounded(n);
  round_array<as_sum>(source, rounded.data(), n);
  for (int64_t i = 0; i < n; ++i) target[i] += rounded[i];
}

#if MXNET_USE_MKLDNN == 1
// The same for arrays of which some are in a layout of oneDNN: the output is in the default layout afterwards.
template <bool as_sum>
void compute_ex(const nnvm::NodeAttrs& attrs, const mxnet::OpContext& context, const std::vector<NDArray>& inputs,
                const std::vector<mxnet::OpReqType>& req, const std::vector<NDArray>& outputs) {
  if (req[0] == mxnet::kNullOp) return;
  const NDArray source = inputs[0].Reorder2Default();  // before the output, which may be the same memory, is touched
  NDArray target = outputs[0];
  if (target.IsMKLDNNData()) {
    const NDArray before = target.Reorder2Default();
    target.InvalidateMKLDNNData();
    if (req[0] == mxnet::kAddTo) {
      std::memcpy(target.data().dptr_, before.data().dptr_, before.shape().Size() * sizeof(float));
    }
  }
  compute<as_sum>(attrs, context, {source.data()}, req, {target.data()});
}
#endif

template <typename T>
void set(nnvm::Op* op, const char* name, const T& value) {
  // Through a volatile pointer, so that MXNet's own instantiation is called and none is made here.
  nnvm::Op& (nnvm::Op::*volatile setter)(const std::string&, const T&, int) = &nnvm::Op::set_attr<T>;
  (op->*setter)(name, value, 10);
}

template <typename T>
void set_as(nnvm::Op* op, const char* name, const char* other) {
  set<T>(op, name, nnvm::Op::GetAttr<T>(name)[nnvm::Op::Get(other)]);
}

using Pairs = std::vector<std::pair<int, int>>;
using Entries = std::vector<nnvm::NodeEntry>;

// Add an operator, whose gradient is what another gives for the gradient that it gets.
template <bool as_sum>
void add(const char* name, const char* gradient) {
  auto* registry = dmlc::Registry<nnvm::Op>::Get();
  if (registry->Find(name) != nullptr) return;
  nnvm::Op* op = &registry->__REGISTER_OR_GET__(name);
  op->set_num_inputs(1).set_num_outputs(1);
  set_as<mxnet::FInferShape>(op, "FInferShape", "_copy");
  set_as<nnvm::FInferType>(op, "FInferType", "_copy");
  set<nnvm::FInplaceOption>(op, "FInplaceOption", [](const nnvm::NodeAttrs&) { return Pairs{{0, 0}}; });
  set<mxnet::FCompute>(op, "FCompute<cpu>", compute<as_sum>);
#if MXNET_USE_MKLDNN == 1
  set_as<mxnet::FInferStorageType>(op, "FInferStorageType", "Flatten");
  set<mxnet::FComputeEx>(op, "FComputeEx<cpu>", compute_ex<as_sum>);
#endif
  set<nnvm::FGradient>(op, "FGradient", [gradient](const nnvm::ObjectPtr& node, const Entries& grads) {
    return mxnet::op::MakeGradNode(gradient, node, grads, node->attrs.dict);
  });
}

}  // namespace

// Add the operators to those that MXNet knows in this process; return 0 if that went well.
extern "C" __attribute__((visibility("default"))) int mxmp_register_rounding() {
  try {
    add<false>("_mxmp_round_float16", "_mxmp_round_float16");
    add<true>("_mxmp_round_float16_forward", "_copy");
  } catch (const std::exception&) {
    return 1;
  }
  return 0;
}

// Round by integers, as on a processor without float16 conversion: for tests.
extern "C" __attribute__((visibility("default"))) void mxmp_round_by_bits(const float* source, float* target,
                                                                          int64_t n) {
  round_by_bits(source, target, n);
}
