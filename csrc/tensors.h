// Tensors as the kernels take them, read from Python and checked against one another.
//
// A tensor is read by its Python attributes (data_ptr, shape, stride, dtype): no torch header is needed, and
// one build works with every version of torch.
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

// What is used of torch's Python API: attribute names, types and functions.
struct TorchSymbols {
  nb::object data_ptr = nb::str("data_ptr"), shape = nb::str("shape"), stride = nb::str("stride"),
             dtype = nb::str("dtype");
  nb::object is_cpu = nb::str("is_cpu"), requires_grad = nb::str("requires_grad"), is_neg = nb::str("is_neg");
  const ExchangeApi* exchange = nullptr;  // null if this torch lacks it
  nb::object f32, bf16, f16, f64, i64, boolean, tensor, parameter, empty_like;

  TorchSymbols() {
    const nb::module_ torch = nb::module_::import_("torch");
    f32 = torch.attr("float32"), bf16 = torch.attr("bfloat16"), f16 = torch.attr("float16");
    tensor = torch.attr("Tensor"), parameter = torch.attr("nn").attr("Parameter");
    empty_like = torch.attr("empty_like");
    f64 = torch.attr("float64"), i64 = torch.attr("int64"), boolean = torch.attr("bool");
    const nb::object capsule = nb::getattr(tensor, "__dlpack_c_exchange_api__", nb::none());
    if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) {
      const auto* api =
          static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
      if (api->header.major == 1) exchange = api;
    }
  }
};

inline const TorchSymbols& torch_symbols() {
  static const TorchSymbols* symbols = new TorchSymbols;  // lives as long as the interpreter
  return *symbols;
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

inline std::string text_of(nb::handle object) { return nb::str(object).c_str(); }

inline int64_t int64_of(PyObject* number) {
  const long long value = PyLong_AsLongLong(number);
  if (value == -1 && PyErr_Occurred()) throw nb::python_error();
  return value;
}

inline void* address(nb::handle tensor) {
  const nb::object number = call(tensor, torch_symbols().data_ptr);
  return reinterpret_cast<void*>(int64_of(number.ptr()));
}

// Reads a plain CPU tensor by torch's C functions. False if this torch lacks them or they cannot read the tensor.
inline bool exchanged_view(nb::handle tensor, View& view) {
  const ExchangeApi* api = torch_symbols().exchange;
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

// Under torch's negative bit the values are the negatives of the stored ones, so no kernel may read the storage.
inline void check_storage(nb::handle tensor, const char* name) {
  if (call(tensor, torch_symbols().is_neg).is(Py_True))
    refuse(std::string(name) + " has torch's negative bit: pass its resolve_neg()");
}

inline View view_of(nb::handle tensor, const char* name) {
  View view;
  const TorchSymbols& torch = torch_symbols();
  check_storage(tensor, name);
  if ((tensor.type().is(torch.tensor) || tensor.type().is(torch.parameter)) && exchanged_view(tensor, view))
    return view;
  const nb::object dtype = get(tensor, torch.dtype), shape = get(tensor, torch.shape),
                   stride = call(tensor, torch.stride);
  if (dtype.is(torch.f32))
    view.dtype = Dtype::f32;
  else if (dtype.is(torch.bf16))
    view.dtype = Dtype::bf16;
  else if (dtype.is(torch.f16))
    view.dtype = Dtype::f16;
  else
    refuse(std::string(name) + " must be float32, bfloat16 or float16, found " + text_of(dtype));
  if (!PyTuple_Check(shape.ptr()) || PyTuple_GET_SIZE(shape.ptr()) != 4)
    refuse(std::string(name) + " must have 4 axes, found shape " + text_of(shape));
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
    refuse(std::string(name) + " must have a last axis of stride 1, found " + std::to_string(view.stride[3]));
  return view;
}

// The elements of a contiguous tensor of `count` elements of the type `dtype`.
template <class T>
T* elements_of(nb::handle tensor, const char* name, const nb::object& dtype, int64_t count) {
  const TorchSymbols& torch = torch_symbols();
  const nb::object actual = get(tensor, torch.dtype);
  if (!actual.is(dtype)) refuse(std::string(name) + " must be " + text_of(dtype) + ", found " + text_of(actual));
  const nb::object shape = get(tensor, torch.shape), stride = call(tensor, torch.stride);
  int64_t elements = 1;
  bool contiguous = true;
  for (Py_ssize_t axis = PyTuple_GET_SIZE(shape.ptr()); axis-- > 0;) {
    const int64_t size = int64_of(PyTuple_GET_ITEM(shape.ptr(), axis));
    contiguous &= size == 1 || int64_of(PyTuple_GET_ITEM(stride.ptr(), axis)) == elements;
    elements *= size;
  }
  if (!contiguous && elements) refuse(std::string(name) + " must be contiguous");
  if (elements != count)
    refuse(std::string(name) + " must have " + std::to_string(count) + " elements, found shape " + text_of(shape));
  check_storage(tensor, name);
  return static_cast<T*>(address(tensor));
}

inline float* floats_of(nb::handle tensor, const char* name, int64_t count) {
  return elements_of<float>(tensor, name, torch_symbols().f32, count);
}

inline MaskTable table_of(nb::handle tensor) {
  const TorchSymbols& torch = torch_symbols();
  MaskTable table;
  const nb::object dtype = get(tensor, torch.dtype), shape = get(tensor, torch.shape),
                   stride = call(tensor, torch.stride);
  if (!dtype.is(torch.i64) && !dtype.is(torch.boolean))
    refuse("a mask table must be int64 or bool, found " + text_of(dtype));
  table.element = dtype.is(torch.i64) ? 8 : 1;
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

inline std::string shape_text(const int64_t (&size)[4]) {
  std::string text = "(";
  for (int axis = 0; axis < 4; ++axis) text += (axis ? ", " : "") + std::to_string(size[axis]);
  return text + ")";
}

// A view of b h i j that has stride 0 where the tensor has size 1.
inline View broadcast_view(nb::handle tensor, const char* name, const int64_t (&extent)[4]) {
  View view = view_of(tensor, name);
  for (int axis = 0; axis < 4; ++axis) {
    if (view.size[axis] == extent[axis]) continue;
    if (view.size[axis] != 1)
      refuse(std::string(name) + " has size " + std::to_string(view.size[axis]) + " on axis " +
             std::to_string(axis) + ", expected 1 or " + std::to_string(extent[axis]));
    view.size[axis] = extent[axis], view.stride[axis] = 0;
  }
  return view;
}

// The arguments that forward and backward share, checked against one another. Owns the nodes of the mask.
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
    if (!bias.is_none()) problem.bias = broadcast_view(bias, "bias", extent);
    if (!slopes.is_none()) problem.slopes = floats_of(slopes, "slopes", extent[1]);
    if (!sinks.is_none()) problem.sinks = floats_of(sinks, "sinks", extent[1]);
    if (!row_lse.is_none()) {
      if (!sinks.is_none()) refuse("sinks and row_lse exclude one another: row_lse already includes the sinks");
      const int64_t rows = extent[0] * extent[1] * extent[2];
      problem.lse = elements_of<double>(row_lse, "row_lse", torch_symbols().f64, rows);
    }
    problem.mask = mask.mask();
    problem.scale = scale, problem.softcap = softcap, problem.dropout = dropout, problem.seed = seed;
  }
  AttentionArguments(const AttentionArguments&) = delete;

  void check() const {
    if (key.size[0] != extent[0] || value.size[0] != extent[0] || key.size[3] != query.size[3] ||
        value.size[1] != key.size[1] || value.size[2] != key.size[2])
      refuse("query " + shape_text(query.size) + ", key " + shape_text(key.size) + " and value " +
             shape_text(value.size) + " do not fit one another");
    if (query.dtype != key.dtype || query.dtype != value.dtype) refuse("query, key and value differ in dtype");
    const int64_t h = query.size[1], g = key.size[1];
    if ((g == 0) != (h == 0) || (g && h % g))
      refuse("the number of key heads must divide that of query heads, found " + std::to_string(g) + " and " +
             std::to_string(h));
    if (query.size[3] < 1 || value.size[3] < 1) refuse("query and value need at least 1 channel");
  }
};

inline std::string dtype_text(Dtype dtype) {
  return dtype == Dtype::f32 ? "float32" : dtype == Dtype::bf16 ? "bfloat16" : "float16";
}

// A tensor of the shape of `like` except for its last axis, in one of two dtypes.
inline View shaped_view(nb::handle tensor, const char* name, const View& like, int64_t last, Dtype dtype,
                        Dtype other) {
  const View view = dense_view(tensor, name);
  const int64_t expected[4] = {like.size[0], like.size[1], like.size[2], last};
  for (int axis = 0; axis < 4; ++axis)
    if (view.size[axis] != expected[axis])
      refuse(std::string(name) + " must have shape " + shape_text(expected) + ", found " + shape_text(view.size));
  if (view.dtype != dtype && view.dtype != other)
    refuse(std::string(name) + " must be " + dtype_text(dtype) +
           (other == dtype ? "" : " or " + dtype_text(other)) + ", found " + dtype_text(view.dtype));
  return view;
}

inline View shaped_view(nb::handle tensor, const char* name, const View& like, int64_t last, Dtype dtype) {
  return shaped_view(tensor, name, like, last, dtype, dtype);
}

// Tensors and numbers by name, any of which may be absent.
struct NamedArguments {
  nb::dict values;

  nb::object find(const char* name) const {
    return values.contains(name) ? nb::object(values[name]) : nb::object(nb::none());
  }
  template <class T>
  void read(T*& into, const char* name, const nb::object& dtype, int64_t count) const {
    const nb::object tensor = find(name);
    if (!tensor.is_none()) into = elements_of<std::remove_const_t<T>>(tensor, name, dtype, count);
  }
  int64_t number(const char* name, int64_t fallback) const {
    const nb::object value = find(name);
    return value.is_none() ? fallback : int64_of(value.ptr());
  }
};

}  // namespace limelight
