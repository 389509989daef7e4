// Python's door to the kernels: read the tensors, let the GIL go, call.
//
// Tensors come in as themselves and are asked for data_ptr, shape, stride and dtype, so no torch header is
// needed and one build serves every torch.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "isa.h"
#include "mask_program.h"
#include "threads.h"

namespace nb = nanobind;

namespace limelight {
namespace {

[[noreturn]] void refuse(const std::string& why) { throw std::invalid_argument(why); }

struct Names {
  nb::object data_ptr = nb::str("data_ptr"), shape = nb::str("shape"), stride = nb::str("stride"),
             dtype = nb::str("dtype");
  nb::object f32, bf16, f16, f64, i64, boolean;

  Names() {
    const nb::module_ torch = nb::module_::import_("torch");
    f32 = torch.attr("float32"), bf16 = torch.attr("bfloat16"), f16 = torch.attr("float16");
    i64 = torch.attr("int64"), boolean = torch.attr("bool");
  }
};

const Names& names() {
  static const Names* kept = new Names;  // lives as long as the interpreter
  return *kept;
}

nb::object call(nb::handle tensor, const nb::object& method) {
  PyObject* result = PyObject_CallMethodNoArgs(tensor.ptr(), method.ptr());
  if (!result) throw nb::python_error();
  return nb::steal(result);
}

nb::object get(nb::handle tensor, const nb::object& name) {
  PyObject* result = PyObject_GetAttr(tensor.ptr(), name.ptr());
  if (!result) throw nb::python_error();
  return nb::steal(result);
}

int64_t whole(PyObject* number) {
  const long long value = PyLong_AsLongLong(number);
  if (value == -1 && PyErr_Occurred()) throw nb::python_error();
  return value;
}

void* address(nb::handle tensor) {
  const nb::object number = call(tensor, names().data_ptr);
  return reinterpret_cast<void*>(whole(number.ptr()));
}

View view_of(nb::handle tensor, const char* name) {
  View view;
  const Names& n = names();
  const nb::object dtype = get(tensor, n.dtype), shape = get(tensor, n.shape), stride = call(tensor, n.stride);
  if (dtype.is(n.f32)) view.dtype = Dtype::f32;
  else if (dtype.is(n.bf16)) view.dtype = Dtype::bf16;
  else if (dtype.is(n.f16)) view.dtype = Dtype::f16;
  else refuse(std::string(name) + " must be float32, bfloat16 or float16");
  if (!PyTuple_Check(shape.ptr()) || PyTuple_GET_SIZE(shape.ptr()) != 4) refuse(std::string(name) + " must have 4 axes");
  for (int axis = 0; axis < 4; ++axis) {
    view.size[axis] = whole(PyTuple_GET_ITEM(shape.ptr(), axis));
    view.stride[axis] = whole(PyTuple_GET_ITEM(stride.ptr(), axis));
  }
  view.data = address(tensor);
  return view;
}

View dense_view(nb::handle tensor, const char* name) {
  const View view = view_of(tensor, name);
  if (view.stride[3] != 1 && view.size[3] > 1) refuse(std::string(name) + " must have a dense last axis");
  return view;
}

// A contiguous float32 tensor of `count` elements.
float* floats_of(nb::handle tensor, const char* name, int64_t count) {
  const Names& n = names();
  if (!get(tensor, n.dtype).is(n.f32)) refuse(std::string(name) + " must be float32");
  const nb::object shape = get(tensor, n.shape), stride = call(tensor, n.stride);
  int64_t dense = 1;
  for (Py_ssize_t axis = PyTuple_GET_SIZE(shape.ptr()); axis-- > 0;) {
    const int64_t size = whole(PyTuple_GET_ITEM(shape.ptr(), axis));
    if (size > 1 && whole(PyTuple_GET_ITEM(stride.ptr(), axis)) != dense)
      refuse(std::string(name) + " must be contiguous");
    dense *= size;
  }
  if (dense != count) refuse(std::string(name) + " has another size");
  return static_cast<float*>(address(tensor));
}

MaskTable table_of(nb::handle tensor) {
  const Names& n = names();
  MaskTable table;
  const nb::object dtype = get(tensor, n.dtype), shape = get(tensor, n.shape), stride = call(tensor, n.stride);
  if (!dtype.is(n.i64) && !dtype.is(n.boolean)) refuse("a mask table must be int64 or bool");
  table.element = dtype.is(n.i64) ? 8 : 1;
  for (Py_ssize_t axis = 0; axis < PyTuple_GET_SIZE(shape.ptr()); ++axis) {
    table.size.push_back(whole(PyTuple_GET_ITEM(shape.ptr(), axis)));
    table.stride.push_back(whole(PyTuple_GET_ITEM(stride.ptr(), axis)));
  }
  table.data = address(tensor);
  return table;
}

std::vector<MaskTable> tables_of(nb::handle tensors) {
  std::vector<MaskTable> tables;
  for (nb::handle tensor : tensors) tables.push_back(table_of(tensor));
  return tables;
}

std::vector<int64_t> program_of(nb::handle numbers) {
  std::vector<int64_t> program;
  for (nb::handle number : numbers) program.push_back(whole(number.ptr()));
  return program;
}

// The arguments that forward and backward share, checked against one another. The mask's nodes live as
// long as this does.
struct Call {
  View query, key, value;
  int64_t extent[4];
  MaskProgram mask;
  Problem problem;

  Call(nb::handle q, nb::handle k, nb::handle v, nb::handle bias, nb::handle slopes, nb::handle tables,
       nb::handle program, double scale, double softcap, double dropout, uint64_t seed)
      : query(dense_view(q, "query")),
        key(dense_view(k, "key")),
        value(dense_view(v, "value")),
        extent{query.size[0], query.size[1], query.size[2], key.size[2]},
        mask(program_of(program), tables_of(tables), extent) {
    problem.query = query, problem.key = key, problem.value = value;
    check();
    if (!bias.is_none()) {
      problem.bias = view_of(bias, "bias");
      for (int axis = 0; axis < 4; ++axis) repeat(axis);
    }
    if (!slopes.is_none()) problem.slopes = floats_of(slopes, "slopes", extent[1]);
    problem.mask = mask.mask();
    problem.scale = scale, problem.softcap = softcap, problem.dropout = dropout, problem.seed = seed;
  }
  Call(const Call&) = delete;

  void check() const {
    if (key.size[0] != extent[0] || value.size[0] != extent[0] || key.size[3] != query.size[3] ||
        value.size[1] != key.size[1] || value.size[2] != key.size[2])
      refuse("query, key and value do not fit one another");
    if (query.dtype != key.dtype || query.dtype != value.dtype) refuse("query, key and value differ in type");
    const int64_t h = query.size[1], g = key.size[1];
    if ((g == 0) != (h == 0) || (g && h % g)) refuse("key heads do not divide query heads");
    if (query.size[3] < 1 || value.size[3] < 1) refuse("query and value need at least 1 channel");
  }

  void repeat(int axis) {
    View& bias = problem.bias;
    if (bias.size[axis] == extent[axis]) return;
    if (bias.size[axis] != 1) refuse("bias does not broadcast to b h i j");
    bias.size[axis] = extent[axis], bias.stride[axis] = 0;
  }
};

bool interrupted_by_signal() {
  nb::gil_scoped_acquire hold;
  return PyErr_CheckSignals() != 0;  // the exception stays set and is raised below
}

void forward(nb::handle q, nb::handle k, nb::handle v, nb::handle bias, nb::handle slopes, nb::handle tables,
             nb::handle program, double scale, double softcap, double dropout, uint64_t seed, nb::handle out,
             nb::handle lse) {
  Call made(q, k, v, bias, slopes, tables, program, scale, softcap, dropout, seed);
  const Problem& p = made.problem;
  Forward task{p, dense_view(out, "out"), floats_of(lse, "lse", p.b() * p.h() * p.i())};
  const int64_t expected[4] = {p.b(), p.h(), p.i(), p.e()};
  for (int axis = 0; axis < 4; ++axis)
    if (task.out.size[axis] != expected[axis]) refuse("out must be b h i e");
  bool finished;
  {
    nb::gil_scoped_release free;
    const Kernels& kernels = chosen();
    finished = kernels.forward(task);
  }
  if (!finished) throw nb::python_error();
}

}  // namespace
}  // namespace limelight

NB_MODULE(_kernels, m) {
  using namespace limelight;
  m.attr("__doc__") = "The C++ kernels of Limelight. limelight.ops.native is their only caller.";
  m.def("isa", [] { return std::string(chosen().isa); }, "The instruction set of the build in use.");
  m.def("runnable", [] {
    std::vector<std::string> found;
    for (const Kernels* build : runnable()) found.emplace_back(build->isa);
    return found;
  }, "The builds that this CPU can run, the best first.");
  m.def("threads", &thread_limit, "How many threads the next call may use.");
  m.def("forward", &forward, nb::arg("query"), nb::arg("key"), nb::arg("value"), nb::arg("bias").none(),
        nb::arg("slopes").none(), nb::arg("tables"), nb::arg("program"), nb::arg("scale"), nb::arg("softcap"),
        nb::arg("dropout"), nb::arg("seed"), nb::arg("out"), nb::arg("lse"), "Writes out and lse.");
  set_interrupt(&interrupted_by_signal);
}
