// Parallel jobs, taken from one counter by torch's own OpenMP threads where OpenMP is loaded.
//
// A second pool would compete with torch's for the cores, because idle OpenMP workers spin for a while. So the
// team is borrowed from the OpenMP runtime that is already in the process. A pool of our own is used where there
// is none, and in forked children, where an OpenMP team would hang.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace limelight {

using JobFunction = void (*)(void* context, int64_t job, int worker);

// How many workers a call may use: the setting of torch.set_num_threads, else the number of cores.
int thread_limit();

// Runs jobs 0 … count−1 on at most `threads` workers, worker 0 being the caller. Jobs start in order.
// Returns false if the caller was interrupted; some jobs have then not run. The first exception that a job throws
// is rethrown in the caller.
bool run_jobs(int64_t count, int threads, JobFunction function, void* context);

// Whether a job should stop; polled between tiles, at a few nanoseconds a call.
bool interrupted();

// `pressed` returns whether Ctrl-C was pressed; the calling thread polls it about ten times a second. Null: never.
void set_interrupt(bool (*pressed)());

// Page-aligned memory of this thread, reused by its next job. A thread has one block, so a job makes one Scratch.
class Scratch {
 public:
  explicit Scratch(int64_t floats) : next_(block(floats)), end_(next_ + floats) {}

  // The next `floats` of the block. Throws std::logic_error beyond its end: a size computed too small must not
  // become a write into other memory.
  float* take(int64_t floats) {
    if (floats > end_ - next_) overrun();
    return std::exchange(next_, next_ + floats);
  }

 private:
  static float* block(int64_t floats);
  [[noreturn]] static void overrun();

  float *next_, *end_;
};

// run_jobs with a callable (int64_t job, int worker).
template <class Body>
bool parallel(int64_t count, int threads, const Body& body) {
  return run_jobs(
      count, threads,
      [](void* context, int64_t job, int worker) { (*static_cast<const Body*>(context))(job, worker); },
      const_cast<Body*>(&body));
}

}  // namespace limelight
