// A team of threads that runs one function together, with barriers cheap enough for hundreds of phases a step.
//
// The thread that calls run() is worker 0. A waiting worker spins for some microseconds, then gives its core away, and
// soon sleeps: between steps the team costs nothing, and a process that shares the cores (the front) is not starved.
// Which worker takes which unit of work is decided as they go; no result depends on it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace sessile {

// A cache-aligned buffer that grows and is kept.
class Scratch {
 public:
  template <class T>
  T* get(size_t count) {
    const size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
    if (bytes > size_) {
      memory_.reset(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{64})));
      size_ = bytes;
    }
    return reinterpret_cast<T*>(memory_.get());
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete(p, std::align_val_t{64}); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  size_t size_ = 0;
};

class Team;

// What one thread of the team sees inside run().
struct Worker {
  Team& team;
  int index;
  Scratch scratch;  // this worker's own

  // Calls f(unit) for units [0, count), each once, on some worker; returns when all are done.
  template <class F>
  void for_units(int64_t count, F&& f);
  void barrier();
};

class Team {
 public:
  explicit Team(int threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return static_cast<int>(workers_.size()); }
  // Buffer `which` that the workers share. All workers ask together for the same size, and are done with what it held.
  template <class T>
  T* shared(int which, size_t count) {
    const std::lock_guard lock(growing_);
    return shared_[which].get<T>(count);
  }

  // Runs f(worker) on all workers and returns when all are done.
  template <class F>
  void run(F&& f) {
    run([](void* arg, Worker& worker) { (*static_cast<F*>(arg))(worker); }, &f);
  }

 private:
  friend struct Worker;
  using Job = void (*)(void*, Worker&);
  void run(Job job, void* arg);
  void serve(Worker& worker);
  void barrier();

  std::mutex one_caller_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::thread> threads_;
  std::mutex growing_;
  Scratch shared_[3];
  Job job_ = nullptr;
  void* arg_ = nullptr;
  bool leaving_ = false;
  alignas(64) std::atomic<uint32_t> started_{0};     // jobs started so far
  alignas(64) std::atomic<uint32_t> generation_{0};  // barriers passed so far
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int64_t> next_unit_{0};
};

template <class F>
void Worker::for_units(int64_t count, F&& f) {
  for (int64_t unit; (unit = team.next_unit_.fetch_add(1, std::memory_order_relaxed)) < count;) f(unit);
  barrier();
}

inline void Worker::barrier() { team.barrier(); }

}  // namespace sessile
