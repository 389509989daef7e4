#include "threads.h"

#include <dlfcn.h>
#include <pthread.h>
#include <time.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

namespace limelight {
namespace {

constexpr int64_t kInterruptPeriod = 100'000'000;  // nanoseconds between two polls for Ctrl-C
constexpr int64_t kMaxKeptScratch = 8 << 20;       // floats of scratch that a thread keeps
constexpr size_t kPage = 4096;

std::atomic<bool (*)()> interrupt{nullptr};
std::atomic<bool> forked{false};

int64_t now() {
#ifdef CLOCK_MONOTONIC_COARSE  // Linux: exact to a few milliseconds, and several times cheaper to read
  constexpr clockid_t clock = CLOCK_MONOTONIC_COARSE;
#else
  constexpr clockid_t clock = CLOCK_MONOTONIC;
#endif
  timespec t;
  clock_gettime(clock, &t);
  return t.tv_sec * 1'000'000'000 + t.tv_nsec;
}

struct Run {
  int64_t count;
  JobFunction function;
  void* context;
  std::atomic<int64_t> next{0};
  std::atomic<bool> stop{false};
  std::atomic<bool> failed{false};
  std::exception_ptr failure;  // the first exception that a job threw

  Run(int64_t jobs, JobFunction body, void* data) : count(jobs), function(body), context(data) {}
};

struct Current {
  Run* run = nullptr;
  bool caller = false;
};
thread_local Current current;
thread_local int64_t last_poll = 0;  // when this thread last polled for Ctrl-C

void work(Run& run, int worker) {
  const Current outer = current;
  current = {&run, worker == 0};
  for (int64_t job; (job = run.next.fetch_add(1, std::memory_order_relaxed)) < run.count;) {
    if (interrupted()) break;
    try {
      run.function(run.context, job, worker);
    } catch (...) {  // an exception must not leave a worker
      if (!run.failed.exchange(true)) run.failure = std::current_exception();
      run.stop.store(true, std::memory_order_relaxed);
    }
  }
  current = outer;
}

// --- torch's OpenMP ---------------------------------------------------------------------------------

struct OpenMp {
  void (*parallel)(void (*)(void*), void*, unsigned, unsigned) = nullptr;
  int (*max_threads)() = nullptr;
  int (*thread_number)() = nullptr;
  int (*in_parallel)() = nullptr;

  OpenMp() {
    auto find = [](auto& into, const char* name) {
      into = reinterpret_cast<std::decay_t<decltype(into)>>(dlsym(RTLD_DEFAULT, name));
    };
    find(parallel, "GOMP_parallel");
    find(max_threads, "omp_get_max_threads");
    find(thread_number, "omp_get_thread_num");
    find(in_parallel, "omp_in_parallel");
    if (!parallel || !max_threads || !thread_number || !in_parallel) parallel = nullptr;
  }
};

const OpenMp& openmp() {
  static const OpenMp runtime;
  return runtime;
}

// --- our own pool -----------------------------------------------------------------------------------

class Pool {
 public:
  // Runs one call at a time; a concurrent caller runs its jobs alone.
  void execute(Run& run, int threads) {
    std::unique_lock<std::mutex> turn(serving_, std::try_to_lock);
    if (!turn.owns_lock()) return work(run, 0);
    grow(threads - 1);
    {
      std::lock_guard<std::mutex> lock(state_);
      run_ = &run, needed_ = threads - 1, joined_ = 0, busy_ = 0, ++round_;
    }
    wake_.notify_all();
    work(run, 0);
    std::unique_lock<std::mutex> lock(state_);
    needed_ = 0;
    done_.wait(lock, [&] { return busy_ == 0; });
    run_ = nullptr;
  }

 private:
  void grow(int workers) {
    while (static_cast<int>(threads_.size()) < workers) {
      threads_.emplace_back([this] { loop(); });
      threads_.back().detach();
    }
  }

  void loop() {
    uint64_t last_round = 0;
    for (std::unique_lock<std::mutex> lock(state_);;) {
      wake_.wait(lock, [&] { return round_ != last_round && joined_ < needed_; });
      last_round = round_;
      const int worker = ++joined_;
      Run* run = run_;
      ++busy_;
      lock.unlock();
      work(*run, worker);
      lock.lock();
      if (--busy_ == 0) done_.notify_one();
    }
  }

  std::mutex serving_, state_;
  std::condition_variable wake_, done_;
  std::vector<std::thread> threads_;
  Run* run_ = nullptr;
  uint64_t round_ = 0;
  int needed_ = 0, joined_ = 0, busy_ = 0;
};

// A pool is never destroyed: its threads may outlive the module, and a forked child must not touch the
// threads and locks of its parent, so it gets a pool of its own.
std::atomic<Pool*> pool{nullptr};

Pool& own_pool() {
  Pool* existing = pool.load(std::memory_order_acquire);
  if (existing) return *existing;
  auto fresh = std::make_unique<Pool>();
  if (pool.compare_exchange_strong(existing, fresh.get(), std::memory_order_acq_rel)) return *fresh.release();
  return *existing;
}

void after_fork() {
  forked.store(true, std::memory_order_relaxed);
  pool.store(nullptr, std::memory_order_relaxed);
  current = {};
}

const int watch_forks = pthread_atfork(nullptr, nullptr, after_fork);

struct Block {
  float* data = nullptr;
  int64_t floats = 0;
  ~Block() { std::free(data); }
};
thread_local Block thread_block;

}  // namespace

int thread_limit() {
  if (openmp().parallel) return openmp().max_threads();
  const unsigned cores = std::thread::hardware_concurrency();
  return cores ? static_cast<int>(cores) : 1;
}

bool run_jobs(int64_t count, int threads, JobFunction function, void* context) {
  Run run(count, function, context);
  if (threads > count) threads = static_cast<int>(count);
  const OpenMp& omp = openmp();
  if (threads <= 1) {
    work(run, 0);
  } else if (!omp.parallel || forked.load(std::memory_order_relaxed)) {
    own_pool().execute(run, threads);
  } else if (omp.in_parallel()) {
    work(run, 0);
  } else {
    omp.parallel([](void* data) { work(*static_cast<Run*>(data), openmp().thread_number()); }, &run,
                 static_cast<unsigned>(threads), 0);
  }
  if (run.failed) std::rethrow_exception(run.failure);
  return !run.stop.load(std::memory_order_relaxed);
}

bool interrupted() {
  Run* run = current.run;
  if (!run) return false;
  if (current.caller) {
    const auto pressed = interrupt.load(std::memory_order_relaxed);
    const int64_t time = pressed ? now() : 0;
    if (pressed && time - last_poll > kInterruptPeriod) {
      last_poll = time;
      if (pressed()) run->stop.store(true, std::memory_order_relaxed);
    }
  }
  return run->stop.load(std::memory_order_relaxed);
}

void set_interrupt(bool (*pressed)()) { interrupt.store(pressed, std::memory_order_relaxed); }

float* Scratch::block(int64_t floats) {
  Block& block = thread_block;
  if (floats > block.floats || (block.floats > kMaxKeptScratch && floats <= kMaxKeptScratch)) {
    std::free(block.data);
    block.floats = 0;
    const size_t bytes = (static_cast<size_t>(floats) * sizeof(float) + kPage - 1) / kPage * kPage;
    block.data = static_cast<float*>(std::aligned_alloc(kPage, bytes));
    if (!block.data) throw std::bad_alloc();
    block.floats = static_cast<int64_t>(bytes / sizeof(float));
  }
  return block.data;
}

void Scratch::overrun() { throw std::logic_error("a kernel takes more scratch memory than it reserved"); }

}  // namespace limelight
