// The workers: jobs taken from one counter, on torch's own OpenMP threads where they are loaded.
//
// A second pool beside torch's would fight it for the cores: idle OpenMP workers spin for a while. So the
// team is borrowed from the OpenMP runtime that is already in the process; the pool here serves where
// there is none, and in forked children, where an OpenMP team would hang.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace limelight {

using JobFunction = void (*)(void* context, int64_t job, int worker);

// How many workers a call may have: what torch.set_num_threads says, else the number of cores.
int thread_limit();

// Runs jobs 0 … count−1 on at most `threads` workers, worker 0 being the caller. Jobs start in order.
// False if the caller was interrupted; then some jobs have not run. What a job throws, the caller gets.
bool run_jobs(int64_t count, int threads, JobFunction job, void* context);

// Whether a job should stop, asked between tiles. Costs a few nanoseconds.
bool interrupted();

// `pressed` says whether Ctrl-C was pressed; the calling thread asks it about ten times a second. Null: never.
void set_interrupt(bool (*pressed)());

// Memory of this thread, aligned to a page, kept for the next job: one block a thread, so a job makes one Scratch.
class Scratch {
 public:
  explicit Scratch(int64_t floats) : next_(block(floats)), end_(next_ + floats) {}

  // The next `floats` of the block. Throws std::logic_error beyond its end: a plan that sums up its parts wrongly
  // must not write into another's memory.
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
