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
  JobFunction job;
  void* context;
  std::atomic<int64_t> next{0};
  std::atomic<bool> stop{false};
  std::atomic<bool> failed{false};
  std::exception_ptr failure;  // the first job's that threw

  Run(int64_t jobs, JobFunction one, void* data) : count(jobs), job(one), context(data) {}
};

struct Current {
  Run* run = nullptr;
  bool caller = false;
};
thread_local Current current;
thread_local int64_t last_poll = 0;  // when this thread last asked about Ctrl-C

void work(Run& run, int worker) {
  const Current before = current;
  current = {&run, worker == 0};
  for (int64_t at; (at = run.next.fetch_add(1, std::memory_order_relaxed)) < run.count;) {
    if (interrupted()) break;
    try {
      run.job(run.context, at, worker);
    } catch (...) {  // out of memory, say: an exception must not leave a worker
      if (!run.failed.exchange(true)) run.failure = std::current_exception();
      run.stop.store(true, std::memory_order_relaxed);
    }
  }
  current = before;
}

// --- torch's OpenMP ---------------------------------------------------------------------------------

struct OpenMp {
  void (*parallel)(void (*)(void*), void*, unsigned, unsigned) = nullptr;
  int (*limit)() = nullptr;
  int (*worker)() = nullptr;
  int (*inside)() = nullptr;

  OpenMp() {
    auto find = [](auto& into, const char* name) {
      into = reinterpret_cast<std::decay_t<decltype(into)>>(dlsym(RTLD_DEFAULT, name));
    };
    find(parallel, "GOMP_parallel");
    find(limit, "omp_get_max_threads");
    find(worker, "omp_get_thread_num");
    find(inside, "omp_in_parallel");
    if (!parallel || !limit || !worker || !inside) parallel = nullptr;
  }
};

const OpenMp& openmp() {
  static const OpenMp runtime;
  return runtime;
}

// --- the own pool -----------------------------------------------------------------------------------

class Pool {
 public:
  // Serves one call at a time; a second caller meanwhile works alone.
  void serve(Run& run, int threads) {
    std::unique_lock<std::mutex> mine(serving_, std::try_to_lock);
    if (!mine.owns_lock()) return work(run, 0);
    grow(threads - 1);
    {
      std::lock_guard<std::mutex> hold(state_);
      run_ = &run, wanted_ = threads - 1, taken_ = 0, busy_ = 0, ++round_;
    }
    wake_.notify_all();
    work(run, 0);
    std::unique_lock<std::mutex> hold(state_);
    wanted_ = 0;
    done_.wait(hold, [&] { return busy_ == 0; });
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
    uint64_t seen = 0;
    for (std::unique_lock<std::mutex> hold(state_);;) {
      wake_.wait(hold, [&] { return round_ != seen && taken_ < wanted_; });
      seen = round_;
      const int worker = ++taken_;
      Run* run = run_;
      ++busy_;
      hold.unlock();
      work(*run, worker);
      hold.lock();
      if (--busy_ == 0) done_.notify_one();
    }
  }

  std::mutex serving_, state_;
  std::condition_variable wake_, done_;
  std::vector<std::thread> threads_;
  Run* run_ = nullptr;
  uint64_t round_ = 0;
  int wanted_ = 0, taken_ = 0, busy_ = 0;
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
thread_local Block own_block;

}  // namespace

int thread_limit() {
  if (openmp().parallel) return openmp().limit();
  const unsigned cores = std::thread::hardware_concurrency();
  return cores ? static_cast<int>(cores) : 1;
}

bool run_jobs(int64_t count, int threads, JobFunction job, void* context) {
  Run run(count, job, context);
  if (threads > count) threads = static_cast<int>(count);
  const OpenMp& omp = openmp();
  if (threads <= 1) {
    work(run, 0);
  } else if (!omp.parallel || forked.load(std::memory_order_relaxed)) {
    own_pool().serve(run, threads);
  } else if (omp.inside()) {
    work(run, 0);
  } else {
    omp.parallel([](void* data) { work(*static_cast<Run*>(data), openmp().worker()); }, &run,
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
  Block& own = own_block;
  if (floats > own.floats || (own.floats > kMaxKeptScratch && floats <= kMaxKeptScratch)) {
    std::free(own.data);
    own.floats = 0;
    const size_t bytes = (static_cast<size_t>(floats) * sizeof(float) + kPage - 1) / kPage * kPage;
    own.data = static_cast<float*>(std::aligned_alloc(kPage, bytes));
    if (!own.data) throw std::bad_alloc();
    own.floats = static_cast<int64_t>(bytes / sizeof(float));
  }
  return own.data;
}

void Scratch::overrun() { throw std::logic_error("a kernel takes more scratch memory than it asked for"); }

}  // namespace limelight
