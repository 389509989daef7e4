// The workers: jobs taken from one counter, on torch's own OpenMP threads where they are loaded.
//
// A second pool beside torch's would fight it for the cores: idle OpenMP workers spin for a while. So the
// team is borrowed from the OpenMP runtime that is already in the process; the pool here serves where
// there is none, and in forked children, where an OpenMP team would hang.
#pragma once

#include <cstddef>
#include <cstdint>

namespace limelight {

using JobFunction = void (*)(void* context, int64_t job, int worker);

// How many workers a call may have: what torch.set_num_threads says, else the number of cores.
int thread_limit();

// Runs jobs 0 … count−1 on at most `threads` workers, worker 0 being the caller. Jobs start in order.
// False if the caller was interrupted; then some jobs have not run. What a job throws, the caller gets.
bool run_jobs(int64_t count, int threads, JobFunction job, void* context);

// Asked inside a job between tiles: true when the work should be left. Costs a few nanoseconds.
bool interrupted();

// The caller's question "has someone pressed Ctrl-C?", asked from the calling thread about ten times a
// second while it works. Null: never.
void set_interrupt(bool (*asked)());

// Memory of this thread, aligned to a page, kept for the next call. One block a thread: ask once a job.
float* scratch(size_t floats);

// run_jobs with a callable (int64_t job, int worker).
template <class Body>
bool parallel(int64_t count, int threads, const Body& body) {
  return run_jobs(
      count, threads,
      [](void* context, int64_t job, int worker) { (*static_cast<const Body*>(context))(job, worker); },
      const_cast<Body*>(&body));
}

}  // namespace limelight
