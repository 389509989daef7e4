// The entry points from Python: read the tensors, release the GIL, call the kernel.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "dispatch.h"
#include "tensors.h"
#include "threads.h"

namespace limelight {
namespace {

constexpr double kShortWork = 1e6;  // multiply-adds: about 20 µs on one core

bool interrupted_by_signal() {
  nb::gil_scoped_acquire hold;
  return PyErr_CheckSignals() != 0;  // the exception stays set and is raised below
}

// Runs one entry of a build without the GIL. An interrupted run raises the exception that the signal handler set.
template <class... Parameters, class... Arguments>
void run(const Kernels& build, bool (*Kernels::*entry)(Parameters...), Arguments&&... arguments) {
  bool finished;
  {
    nb::gil_scoped_release free;
    finished = (build.*entry)(arguments...);
  }
  if (!finished) throw nb::python_error();
}

void forward(nb::handle q, nb::handle k, nb::handle v, nb::handle bias, nb::handle slopes, nb::handle sinks,
             nb::handle row_lse, nb::handle tables, nb::handle program, double scale, double softcap,
             double dropout, uint64_t seed, nb::handle out, nb::handle lse) {
  const AttentionArguments arguments(q, k, v, bias, slopes, sinks, row_lse, tables, program, scale, softcap,
                                     dropout, seed);
  const Problem& p = arguments.problem;
  const Forward task{p, shaped_view(out, "out", p.query, p.e(), p.query.dtype, Dtype::f32),
                     floats_of(lse, "lse", p.b() * p.h() * p.i())};
  run(build_for(p), &Kernels::forward, task);
}

// Whether a tensor is a plain CPU tensor of a dtype that the kernels support, with a dense last axis and, if
// `refuse_gradients`, without requires_grad. Then `view` is set.
bool plain_view(nb::handle tensor, bool refuse_gradients, View& view) {
  const TorchSymbols& torch = torch_symbols();
  if (!tensor.type().is(torch.tensor) && !tensor.type().is(torch.parameter)) return false;
  if (refuse_gradients && get(tensor, torch.requires_grad).is(Py_True)) return false;
  if (call(tensor, torch.is_neg).is(Py_True)) return false;
  if (!exchanged_view(tensor, view)) {
    if (!get(tensor, torch.is_cpu).is(Py_True)) return false;
    const nb::object dtype = get(tensor, torch.dtype), shape = get(tensor, torch.shape);
    if (!dtype.is(torch.f32) && !dtype.is(torch.bf16) && !dtype.is(torch.f16)) return false;
    if (PyTuple_GET_SIZE(shape.ptr()) != 4) return false;
    view = view_of(tensor, "a tensor");
  }
  return view.stride[3] == 1;
}

nb::object plain_output(nb::handle q, nb::handle k, nb::handle v, nb::handle program, nb::handle scale,
                        bool refuse_gradients) {
  Forward task;
  Problem& p = task.problem;
  if (!plain_view(q, refuse_gradients, p.query) || !plain_view(k, refuse_gradients, p.key) ||
      !plain_view(v, refuse_gradients, p.value))
    return nb::none();
  const int64_t *query = p.query.size, *key = p.key.size, *value = p.value.size;
  const bool fits = query[0] == key[0] && key[0] == value[0] && key[1] == value[1] && key[2] == value[2] &&
                    query[3] == key[3] && key[3] == value[3] && query[3] > 0 && query[1] > 0 && key[1] > 0 &&
                    query[1] % key[1] == 0 && p.query.dtype == p.key.dtype && p.query.dtype == p.value.dtype;
  if (!fits) return nb::none();
  p.scale = 1 / std::sqrt(static_cast<double>(p.d()));
  if (!scale.is_none()) {
    if (!PyFloat_CheckExact(scale.ptr())) return nb::none();
    p.scale = PyFloat_AS_DOUBLE(scale.ptr());
    if (!std::isfinite(p.scale)) return nb::none();
  }
  PyObject* allocated = PyObject_CallOneArg(torch_symbols().empty_like.ptr(), q.ptr());
  if (!allocated) throw nb::python_error();
  nb::object out = nb::steal(allocated);
  if (!exchanged_view(out, task.out)) task.out = view_of(out, "out");
  if (task.out.stride[3] != 1) return nb::none();
  const auto lse = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(p.b() * p.h() * p.i()));
  task.lse = lse.get();
  const int64_t extent[4] = {p.b(), p.h(), p.i(), p.j()};
  const MaskProgram mask(program_of(program), {}, extent);
  p.mask = mask.mask();
  const double work = double(p.b()) * double(p.h()) * double(p.i()) * double(p.j()) * double(2 * p.d());
  if (work < kShortWork) {  // shorter than a release of the GIL
    if (!build_for(p).forward(task)) throw nb::python_error();
  } else {
    run(build_for(p), &Kernels::forward, task);
  }
  return out;
}

// attend_plain(query, key, value, program, scale, refuse_gradients), positional only: the output of a call on
// plain tensors without bias or dropout, and with no mask or one without tables. Returns None for any other call,
// which the general path then runs or rejects with a message. A plain C function, because parsing six arguments by
// nanobind takes a noticeable part of a small call.
PyObject* attend_plain(PyObject*, PyObject* const* arguments, Py_ssize_t count) noexcept {
  try {
    if (count != 6) refuse("attend_plain takes 6 arguments, found " + std::to_string(count));
    return plain_output(arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
                        arguments[5] == Py_True)
        .release()
        .ptr();
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const std::invalid_argument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

PyMethodDef attend_plain_method = {"attend_plain",
                                   reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&attend_plain)),
                                   METH_FASTCALL, "The output of a plain call, or None if it is not one."};

void backward(nb::handle q, nb::handle k, nb::handle v, nb::handle bias, nb::handle slopes, nb::handle sinks,
              nb::handle row_lse, nb::handle tables, nb::handle program, double scale, double softcap,
              double dropout, uint64_t seed, nb::handle out, nb::handle lse, nb::handle grad_out,
              nb::handle grad_lse, nb::handle grad_query, nb::handle grad_key, nb::handle grad_value,
              nb::handle grad_bias, nb::handle grad_slopes, nb::handle grad_sinks) {
  const AttentionArguments arguments(q, k, v, bias, slopes, sinks, row_lse, tables, program, scale, softcap,
                                     dropout, seed);
  const Problem& p = arguments.problem;
  const int64_t rows = p.b() * p.h() * p.i();
  Backward task;
  task.problem = p;
  task.out = shaped_view(out, "out", p.query, p.e(), Dtype::f32);
  task.lse = floats_of(lse, "lse", rows);
  task.grad_out = shaped_view(grad_out, "grad_out", p.query, p.e(), Dtype::f32);
  if (!grad_lse.is_none()) task.grad_lse = floats_of(grad_lse, "grad_lse", rows);
  task.grad_query = shaped_view(grad_query, "grad_query", p.query, p.d(), p.query.dtype);
  task.grad_key = shaped_view(grad_key, "grad_key", p.key, p.d(), p.key.dtype);
  task.grad_value = shaped_view(grad_value, "grad_value", p.value, p.e(), p.value.dtype);
  if (!grad_bias.is_none()) {
    if (!p.bias) refuse("grad_bias without a bias");
    task.grad_bias = broadcast_view(grad_bias, "grad_bias", arguments.extent);
    if (task.grad_bias.dtype != Dtype::f32)
      refuse("grad_bias must be float32, found " + dtype_text(task.grad_bias.dtype));
  }
  if (!grad_slopes.is_none()) {
    if (!p.slopes) refuse("grad_slopes without slopes");
    task.grad_slopes = floats_of(grad_slopes, "grad_slopes", p.h());
  }
  if (!grad_sinks.is_none()) {
    if (!p.sinks) refuse("grad_sinks without sinks");
    task.grad_sinks = floats_of(grad_sinks, "grad_sinks", p.h());
  }
  run(chosen_build(), &Kernels::backward, task);
}

// The row statistics that a lens requests, with every tensor checked.
RowStats row_stats_of(const NamedArguments& arguments, const Problem& p) {
  const TorchSymbols& torch = torch_symbols();
  const int64_t rows = p.b() * p.h() * p.i();
  RowStats stats;
  stats.top_count = arguments.number("top_count", 0), stats.column_count = arguments.number("column_count", 0);
  stats.band_reach = std::min(arguments.number("band_reach", 0), p.i() + p.j());  // no key is farther away
  arguments.read(stats.max_score, "max_score", torch.f32, rows);
  arguments.read(stats.entropy, "entropy", torch.f32, rows);
  arguments.read(stats.distance, "distance", torch.f32, rows);
  arguments.read(stats.band, "band", torch.f32, rows);
  arguments.read(stats.columns, "columns", torch.f32, rows * stats.column_count);
  arguments.read(stats.column_keys, "column_keys", torch.i64, stats.column_count);
  arguments.read(stats.top, "top", torch.f32, rows * stats.top_count);
  arguments.read(stats.top_keys, "top_keys", torch.i64, rows * stats.top_count);
  if (!stats.top != !stats.top_count || !stats.top_keys != !stats.top_count ||
      !stats.columns != !stats.column_count || !stats.column_keys != !stats.column_count)
    refuse("top needs top_keys and top_count, columns need column_keys and column_count");
  return stats;
}

PooledStats pooled_stats_of(const NamedArguments& arguments, const Problem& p) {
  const TorchSymbols& torch = torch_symbols();
  const int64_t heads = p.b() * p.h();
  PooledStats stats;
  stats.rows = arguments.number("rows", 1), stats.columns = arguments.number("columns", 1);
  stats.piece_count = arguments.number("piece_count", 0), stats.top_count = arguments.number("top_count", 0);
  if (stats.rows < 1 || stats.columns < 1 || stats.piece_count < 1)
    refuse("rows, columns and piece_count must be at least 1");
  const int64_t cells = heads * stats.rows * stats.columns;
  arguments.read(stats.pieces, "pieces", torch.i64, stats.piece_count + 1);
  if (!stats.pieces || stats.pieces[0] != 0 || stats.pieces[stats.piece_count] != p.i())
    refuse("pieces must cover all queries");
  for (int64_t t = 0; t < stats.piece_count; ++t)
    if (stats.pieces[t] > stats.pieces[t + 1]) refuse("pieces must be ascending");
  arguments.read(stats.norms, "norms", torch.f32, p.b() * p.g() * p.j());
  arguments.read(stats.received, "received", torch.f64, heads * stats.piece_count * p.j());
  arguments.read(stats.map_sum, "map_sum", torch.f64, cells);
  arguments.read(stats.map_max, "map_max", torch.f32, cells);
  arguments.read(stats.top, "top", torch.f32, heads * p.i() * stats.top_count);
  arguments.read(stats.top_keys, "top_keys", torch.i64, heads * p.i() * stats.top_count);
  if (!stats.map_sum != !stats.map_max || !stats.top != !stats.top_keys || !stats.top != !stats.top_count ||
      (stats.top && !stats.norms))
    refuse("map_sum needs map_max, top needs top_keys, top_count and norms");
  return stats;
}

void lens_forward(nb::handle q, nb::handle k, nb::handle v, nb::handle bias, nb::handle slopes, nb::handle sinks,
                  nb::handle row_lse, nb::handle tables, nb::handle program, double scale, double softcap,
                  double dropout, uint64_t seed, nb::handle out, nb::handle lse, nb::dict row_stats,
                  nb::object pooled_stats) {
  const AttentionArguments arguments(q, k, v, bias, slopes, sinks, row_lse, tables, program, scale, softcap,
                                     dropout, seed);
  const Problem& p = arguments.problem;
  const int64_t rows = p.b() * p.h() * p.i();
  if (rows == 0) return;
  LensForward task;
  task.forward = {p, shaped_view(out, "out", p.query, p.e(), p.query.dtype, Dtype::f32),
                  floats_of(lse, "lse", rows)};
  task.row_stats = row_stats_of({row_stats}, p);
  if (!pooled_stats.is_none() && p.j() > 0)
    task.pooled_stats = pooled_stats_of({nb::cast<nb::dict>(pooled_stats)}, p);
  run(build_for(p), &Kernels::lens_forward, task);
}

void activation(const std::string& kind, nb::handle x, nb::handle grad, nb::handle out, int64_t rows,
                int64_t width) {
  Activation task;
  if (kind == "gelu")
    task.kind = ActivationKind::gelu;
  else if (kind == "gelu_tanh")
    task.kind = ActivationKind::gelu_tanh;
  else if (kind == "swiglu")
    task.kind = ActivationKind::swiglu;
  else
    refuse("activation must be gelu, gelu_tanh or swiglu, found " + kind);
  const int64_t small = rows * width, large = task.kind == ActivationKind::swiglu ? 2 * small : small;
  if (small == 0) return;
  task.rows = rows, task.width = width;
  task.x = floats_of(x, "x", large);
  if (!grad.is_none()) task.grad = floats_of(grad, "grad", small);
  task.out = floats_of(out, "out", task.grad ? large : small);
  run(chosen_build(), &Kernels::activation, task);
}

void skinny_gemm(nb::handle x, nb::handle weight, nb::handle bias, nb::handle out, int64_t rows, int64_t outputs,
                 int64_t channels) {
  SkinnyGemm task;
  task.rows = rows, task.outputs = outputs, task.channels = channels;
  if (rows * outputs == 0) return;
  task.x = floats_of(x, "x", rows * channels);
  task.weight = floats_of(weight, "weight", outputs * channels);
  if (!bias.is_none()) task.bias = floats_of(bias, "bias", outputs);
  task.out = floats_of(out, "out", rows * outputs);
  run(chosen_build(), &Kernels::skinny_gemm, task);
}

int64_t count_of(nb::handle tensor) {
  const nb::object count = tensor.attr("numel")();
  return int64_of(count.ptr());
}

double sum_squares(nb::sequence gradients) {
  std::vector<Parameter> parameters;
  for (nb::handle gradient : gradients) {
    Parameter p;
    p.count = count_of(gradient);
    p.grad = floats_of(gradient, "a gradient", p.count);
    parameters.push_back(p);
  }
  double total = 0;
  run(chosen_build(), &Kernels::sum_squares, parameters.data(), static_cast<int64_t>(parameters.size()), total);
  return total;
}

void adamw(nb::sequence states, double learning_rate, double beta1, double beta2, double epsilon,
           double weight_decay, double grad_scale) {
  std::vector<Parameter> parameters;
  for (nb::handle state : states) {
    const nb::sequence parts = nb::cast<nb::sequence>(state);
    if (nb::len(parts) != 5)
      refuse("each parameter must be (weight, gradient, mean, square, step), found " +
             std::to_string(nb::len(parts)) + " items");
    Parameter p;
    p.count = count_of(parts[0]);
    p.weight = floats_of(parts[0], "weight", p.count);
    p.grad = floats_of(parts[1], "gradient", p.count);
    p.mean = floats_of(parts[2], "mean", p.count);
    p.square = floats_of(parts[3], "square", p.count);
    p.step = nb::cast<int64_t>(parts[4]);
    if (p.step < 1) refuse("step must be at least 1, found " + std::to_string(p.step));
    parameters.push_back(p);
  }
  const int64_t count = static_cast<int64_t>(parameters.size());
  const AdamWStep task{parameters.data(), count, learning_rate, beta1, beta2, epsilon, weight_decay, grad_scale};
  run(chosen_build(), &Kernels::adamw, task);
}

}  // namespace
}  // namespace limelight

NB_MODULE(_kernels, m) {
  using namespace limelight;
  m.attr("__doc__") = "The C++ kernels of Limelight. Their callers are in limelight.ops.";
  m.attr("REVISION") = 5;  // of this interface; must equal _REVISION in ops/kernels.py
  m.def("isa", [] { return std::string(chosen_build().isa); }, "The instruction set of the build in use.");
  m.def(
      "runnable",
      [] {
        std::vector<std::string> names;
        for (const Kernels* build : runnable_builds()) names.emplace_back(build->isa);
        return names;
      },
      "The builds that this CPU can run, fastest first.");
  m.def("threads", &thread_limit, "How many threads the next call may use.");
  m.attr("attend_plain") = nb::steal(PyCFunction_New(&attend_plain_method, nullptr));
  m.def("forward", &forward, nb::arg("query"), nb::arg("key"), nb::arg("value"), nb::arg("bias").none(),
        nb::arg("slopes").none(), nb::arg("sinks").none(), nb::arg("row_lse").none(), nb::arg("tables"),
        nb::arg("program"), nb::arg("scale"), nb::arg("softcap"), nb::arg("dropout"), nb::arg("seed"),
        nb::arg("out"), nb::arg("lse"), "Writes out and lse.");
  m.def("backward", &backward, nb::arg("query"), nb::arg("key"), nb::arg("value"), nb::arg("bias").none(),
        nb::arg("slopes").none(), nb::arg("sinks").none(), nb::arg("row_lse").none(), nb::arg("tables"),
        nb::arg("program"), nb::arg("scale"), nb::arg("softcap"), nb::arg("dropout"), nb::arg("seed"),
        nb::arg("out"), nb::arg("lse"), nb::arg("grad_out"), nb::arg("grad_lse").none(), nb::arg("grad_query"),
        nb::arg("grad_key"), nb::arg("grad_value"), nb::arg("grad_bias").none(), nb::arg("grad_slopes").none(),
        nb::arg("grad_sinks").none(),
        "Writes the gradients; those of bias, slopes and sinks must be zero on entry.");
  m.def("lens_forward", &lens_forward, nb::arg("query"), nb::arg("key"), nb::arg("value"), nb::arg("bias").none(),
        nb::arg("slopes").none(), nb::arg("sinks").none(), nb::arg("row_lse").none(), nb::arg("tables"),
        nb::arg("program"), nb::arg("scale"), nb::arg("softcap"), nb::arg("dropout"), nb::arg("seed"),
        nb::arg("out"), nb::arg("lse"), nb::arg("row_stats"), nb::arg("pooled_stats").none(),
        "Writes out, lse and the requested row statistics, maxima and links; adds to the sums.");
  m.def("activation", &activation, nb::arg("kind"), nb::arg("x"), nb::arg("grad").none(), nb::arg("out"),
        nb::arg("rows"), nb::arg("width"), "Writes the activation of x, or with grad its gradient.");
  m.def("skinny_gemm", &skinny_gemm, nb::arg("x"), nb::arg("weight"), nb::arg("bias").none(), nb::arg("out"),
        nb::arg("rows"), nb::arg("outputs"), nb::arg("channels"), "Writes x·weightᵀ + bias.");
  m.def("sum_squares", &sum_squares, nb::arg("gradients"),
        "The sum of the squares of all elements of all gradients.");
  m.def("adamw", &adamw, nb::arg("parameters"), nb::arg("learning_rate"), nb::arg("beta1"), nb::arg("beta2"),
        nb::arg("epsilon"), nb::arg("weight_decay"), nb::arg("grad_scale"),
        "One AdamW update of (weight, gradient, mean, square, step); gradients are multiplied by grad_scale.");
  set_interrupt(&interrupted_by_signal);
}
