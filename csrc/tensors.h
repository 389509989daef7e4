// Tensors as the kernels take them, read from Python and checked against one another.
//
// A tensor is read by its Python attributes (data_ptr, shape, stride, dtype): no torch header is needed, and
// one build serves every torch.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>
#include <type_traits>
#include <vector>

#include "attention/problem.h"
#include "masks/program.h"

namespace limelight {

namespace nb = nanobind;

[[noreturn]] inline void refuse(const std::string& why) { throw std::invalid_argument(why); }

// torch's table of C functions for DLPack exchange (torch 2.10 and later): one call instead of five attributes.
struct ExchangeApi {
  struct Header {
    uint32_t major, minor;
    Header* previous;
  } header;
  void *allocate, *export_managed, *import_managed;
  int (*view)(void* tensor, nb::dlpack::dltensor* out);
};

struct Names {
  nb::object data_ptr = nb::str("data_ptr"), shape = nb::str("shape"), stride = nb::str("stride"),
             dtype = nb::str("dtype");
  nb::object is_cpu = nb::str("is_cpu"), requires_grad = nb::str("requires_grad"), is_neg = nb::str("is_neg");
  const ExchangeApi* exchange = nullptr;  // where torch has it
  nb::object f32, bf16, f16, f64, i64, boolean, tensor, parameter, empty_like;

  Names() {
    const nb::module_ torch = nb::module_::import_("torch");
    f32 = torch.attr("float32"), bf16 = torch.attr("bfloat16"), f16 = torch.attr("float16");
    tensor = torch.attr("Tensor"), parameter = torch.attr("nn").attr("Parameter");
    empty_like = torch.attr("empty_like");
    const nb::object capsule = nb::getattr(tensor, "__dlpack_c_exchange_api__", nb::none());
    if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) {
      const auto* api =
          static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
      if (api->header.major == 1) exchange = api;
    }
    f64 = torch.attr("float64"), i64 = torch.attr("int64"), boolean = torch.attr("bool");
  }
};

inline const Names& names() {
  static const Names* instance = new Names;  // lives as long as the interpreter
  return *instance;
}

inline nb::object call(nb::handle tensor, const nb::object& method) {
  PyObject* result = PyObject_CallMethodNoArgs(tensor.ptr(), method.ptr());
  if (!result) throw nb::python_error();
  return nb::steal(result);
}

inline nb::object get(nb::handle tensor, const nb::object& name) {
  PyObject* result = PyObject_GetAttr(tensor.ptr(), name.ptr());
  if (!result) throw nb::python_error();
  return nb::steal(result);
}

inline int64_t int64_of(PyObject* number) {
  const long long value = PyLong_AsLongLong(number);
  if (value == -1 && PyErr_Occurred()) throw nb::python_error();
  return value;
}

inline void* address(nb::handle tensor) {
  const nb::object number = call(tensor, names().data_ptr);
  return reinterpret_cast<void*>(int64_of(number.ptr()));
}

// The view of a plain tensor on the CPU by torch's C functions; false where they or the tensor cannot serve.
inline bool exchanged_view(nb::handle tensor, View& view) {
  const ExchangeApi* api = names().exchange;
  if (!api || !api->view) return false;
  nb::dlpack::dltensor t;
  if (api->view(tensor.ptr(), &t) != 0) {
    PyErr_Clear();
    return false;
  }
  constexpr int32_t kCpu = 1;
  constexpr uint8_t kFloat = 2, kBfloat = 4;
  if (t.device.device_type != kCpu || t.ndim != 4 || t.dtype.lanes != 1) return false;
  if (t.dtype.code == kFloat && t.dtype.bits == 32)
    view.dtype = Dtype::f32;
  else if (t.dtype.code == kFloat && t.dtype.bits == 16)
    view.dtype = Dtype::f16;
  else if (t.dtype.code == kBfloat && t.dtype.bits == 16)
    view.dtype = Dtype::bf16;
  else
    return false;
  for (int axis = 0; axis < 4; ++axis) view.size[axis] = t.shape[axis], view.stride[axis] = t.strides[axis];
  view.data = static_cast<char*>(t.data) + t.byte_offset;
  return true;
}

// Storage means the negative of what it holds under torch's negative bit, so no kernel may read it.
inline void check_storage(nb::handle tensor, const char* name) {
  if (call(tensor, names().is_neg).is(Py_True))
    refuse(std::string(name) + " has torch's negative bit: pass its resolve_neg()");
}

inline View view_of(nb::handle tensor, const char* name) {
  View view;
  const Names& n = names();
  check_storage(tensor, name);
  if ((tensor.type().is(n.tensor) || tensor.type().is(n.parameter)) && exchanged_view(tensor, view)) return view;
  const nb::object dtype = get(tensor, n.dtype), shape = get(tensor, n.shape), stride = call(tensor, n.stride);
  if (dtype.is(n.f32))
    view.dtype = Dtype::f32;
  else if (dtype.is(n.bf16))
    view.dtype = Dtype::bf16;
  else if (dtype.is(n.f16))
    view.dtype = Dtype::f16;
  else
    refuse(std::string(name) + " must be float32, bfloat16 or float16");
  if (!PyTuple_Check(shape.ptr()) || PyTuple_GET_SIZE(shape.ptr()) != 4)
    refuse(std::string(name) + " must have 4 axes");
  for (int axis = 0; axis < 4; ++axis) {
    view.size[axis] = int64_of(PyTuple_GET_ITEM(shape.ptr(), axis));
    view.stride[axis] = int64_of(PyTuple_GET_ITEM(stride.ptr(), axis));
  }
  view.data = address(tensor);
  return view;
}

inline View dense_view(nb::handle tensor, const char* name) {
  const View view = view_of(tensor, name);
  const bool empty = !view.size[0] || !view.size[1] || !view.size[2] || !view.size[3];
  if (view.stride[3] != 1 && view.size[3] > 1 && !empty)
    refuse(std::string(name) + " must have a dense last axis");
  return view;
}

// The elements of a contiguous tensor of `count` elements of the type `dtype`.
template <class T>
T* elements_of(nb::handle tensor, const char* name, const nb::object& dtype, int64_t count) {
  const Names& n = names();
  if (!get(tensor, n.dtype).is(dtype)) refuse(std::string(name) + " has another type");
  const nb::object shape = get(tensor, n.shape), stride = call(tensor, n.stride);
  int64_t dense = 1;
  bool contiguous = true;
  for (Py_ssize_t axis = PyTuple_GET_SIZE(shape.ptr()); axis-- > 0;) {
    const int64_t size = int64_of(PyTuple_GET_ITEM(shape.ptr(), axis));
    contiguous &= size == 1 || int64_of(PyTuple_GET_ITEM(stride.ptr(), axis)) == dense;
    dense *= size;
  }
  if (!contiguous && dense) refuse(std::string(name) + " must be contiguous");
  if (dense != count) refuse(std::string(name) + " has another size");
  check_storage(tensor, name);
  return static_cast<T*>(address(tensor));
}

inline float* floats_of(nb::handle tensor, const char* name, int64_t count) {
  return elements_of<float>(tensor, name, names().f32, count);
}

inline MaskTable table_of(nb::handle tensor) {
  const Names& n = names();
  MaskTable table;
  const nb::object dtype = get(tensor, n.dtype), shape = get(tensor, n.shape), stride = call(tensor, n.stride);
  if (!dtype.is(n.i64) && !dtype.is(n.boolean)) refuse("a mask table must be int64 or bool");
  table.element = dtype.is(n.i64) ? 8 : 1;
  for (Py_ssize_t axis = 0; axis < PyTuple_GET_SIZE(shape.ptr()); ++axis) {
    table.size.push_back(int64_of(PyTuple_GET_ITEM(shape.ptr(), axis)));
    table.stride.push_back(int64_of(PyTuple_GET_ITEM(stride.ptr(), axis)));
  }
  table.data = address(tensor);
  return table;
}

inline std::vector<MaskTable> tables_of(nb::handle tensors) {
  std::vector<MaskTable> tables;
  for (nb::handle tensor : tensors) tables.push_back(table_of(tensor));
  return tables;
}

inline std::vector<int64_t> program_of(nb::handle numbers) {
  std::vector<int64_t> program;
  for (nb::handle number : numbers) program.push_back(int64_of(number.ptr()));
  return program;
}

// A view of b h i j that has stride 0 where the tensor has size 1.
inline View repeating_view(nb::handle tensor, const char* name, const int64_t (&extent)[4]) {
  View view = view_of(tensor, name);
  for (int axis = 0; axis < 4; ++axis) {
    if (view.size[axis] == extent[axis]) continue;
    if (view.size[axis] != 1) refuse(std::string(name) + " does not broadcast to b h i j");
    view.size[axis] = extent[axis], view.stride[axis] = 0;
  }
  return view;
}

// The arguments that forward and backward share, checked against one another. The mask's nodes live as
// long as this does.
struct AttentionArguments {
  View query, key, value;
  int64_t extent[4];
  MaskProgram mask;
  Problem problem;

  AttentionArguments(nb::handle q, nb::handle k, nb::handle v, nb::handle bias, nb::handle slopes,
                     nb::handle sinks, nb::handle row_lse, nb::handle tables, nb::handle program, double scale,
                     double softcap, double dropout, uint64_t seed)
      : query(dense_view(q, "query")),
        key(dense_view(k, "key")),
        value(dense_view(v, "value")),
        extent{query.size[0], query.size[1], query.size[2], key.size[2]},
        mask(program_of(program), tables_of(tables), extent) {
    problem.query = query, problem.key = key, problem.value = value;
    check();
    if (!bias.is_none()) problem.bias = repeating_view(bias, "bias", extent);
    if (!slopes.is_none()) problem.slopes = floats_of(slopes, "slopes", extent[1]);
    if (!sinks.is_none()) problem.sinks = floats_of(sinks, "sinks", extent[1]);
    if (!row_lse.is_none()) {
      if (!sinks.is_none()) refuse("sinks beside a log-sum-exp that is given: it should count them");
      const int64_t rows = extent[0] * extent[1] * extent[2];
      problem.lse = elements_of<double>(row_lse, "row_lse", names().f64, rows);
    }
    problem.mask = mask.mask();
    problem.scale = scale, problem.softcap = softcap, problem.dropout = dropout, problem.seed = seed;
  }
  AttentionArguments(const AttentionArguments&) = delete;

  void check() const {
    if (key.size[0] != extent[0] || value.size[0] != extent[0] || key.size[3] != query.size[3] ||
        value.size[1] != key.size[1] || value.size[2] != key.size[2])
      refuse("query, key and value do not fit one another");
    if (query.dtype != key.dtype || query.dtype != value.dtype) refuse("query, key and value differ in type");
    const int64_t h = query.size[1], g = key.size[1];
    if ((g == 0) != (h == 0) || (g && h % g)) refuse("key heads do not divide query heads");
    if (query.size[3] < 1 || value.size[3] < 1) refuse("query and value need at least 1 channel");
  }
};

// A tensor of the shape of `like`, but for its last axis, and of one of two types.
inline View shaped_view(nb::handle tensor, const char* name, const View& like, int64_t last, Dtype dtype,
                        Dtype other) {
  const View view = dense_view(tensor, name);
  const int64_t expected[4] = {like.size[0], like.size[1], like.size[2], last};
  for (int axis = 0; axis < 4; ++axis)
    if (view.size[axis] != expected[axis]) refuse(std::string(name) + " has another shape");
  if (view.dtype != dtype && view.dtype != other) refuse(std::string(name) + " has another type");
  return view;
}

inline View shaped_view(nb::handle tensor, const char* name, const View& like, int64_t last, Dtype dtype) {
  return shaped_view(tensor, name, like, last, dtype, dtype);
}

// Named tensors and numbers of which any may be absent.
struct Named {
  nb::dict values;

  nb::object find(const char* name) const {
    return values.contains(name) ? nb::object(values[name]) : nb::object(nb::none());
  }
  template <class T>
  void read(T*& into, const char* name, const nb::object& dtype, int64_t count) const {
    const nb::object tensor = find(name);
    if (!tensor.is_none()) into = elements_of<std::remove_const_t<T>>(tensor, name, dtype, count);
  }
  int64_t number(const char* name, int64_t otherwise) const {
    const nb::object value = find(name);
    return value.is_none() ? otherwise : int64_of(value.ptr());
  }
};

}  // namespace limelight
