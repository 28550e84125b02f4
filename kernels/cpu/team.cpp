#include "team.h"

#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sessile {
namespace {

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Returns when `value` is no longer `old`: spins, then yields, then sleeps.
void wait_while(const std::atomic<uint32_t>& value, uint32_t old) {
  constexpr auto patience = std::chrono::microseconds(200);
  for (int i = 0; i < 200; ++i) {  // about 10 us: the usual imbalance of a phase
    if (value.load(std::memory_order_acquire) != old) return;
    pause();
  }
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (std::chrono::steady_clock::now() < deadline) {
    if (value.load(std::memory_order_acquire) != old) return;
    std::this_thread::yield();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

Team::Team(int threads) {
  for (int i = 0; i < threads; ++i) workers_.push_back(std::unique_ptr<Worker>(new Worker{*this, i, {}}));
  for (int i = 1; i < threads; ++i) threads_.emplace_back([this, i] { serve(*workers_[i]); });
}

Team::~Team() {
  leaving_ = true;
  started_.fetch_add(1, std::memory_order_release);
  started_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Team::run(Job job, void* arg) {
  const std::lock_guard lock(one_caller_);
  job_ = job;
  arg_ = arg;
  next_unit_.store(0, std::memory_order_relaxed);
  started_.fetch_add(1, std::memory_order_release);
  started_.notify_all();
  job(arg, *workers_[0]);
  barrier();
}

void Team::serve(Worker& worker) {
  for (uint32_t seen = 0;; ++seen) {
    wait_while(started_, seen);
    if (leaving_) return;
    job_(arg_, worker);
    barrier();
  }
}

void Team::barrier() {
  const uint32_t generation = generation_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < size()) {
    wait_while(generation_, generation);
    return;
  }
  arrived_.store(0, std::memory_order_relaxed);
  next_unit_.store(0, std::memory_order_relaxed);
  generation_.store(generation + 1, std::memory_order_release);
  generation_.notify_all();
}

}  // namespace sessile

extern "C" void* sessile_team_new(int threads) { return new sessile::Team(threads); }

extern "C" void sessile_team_delete(void* team) { delete static_cast<sessile::Team*>(team); }
