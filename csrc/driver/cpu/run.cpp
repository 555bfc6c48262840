// The schedules: how streams advance, and which thread takes which node from the ready lists.
#include "driver/cpu/state.h"

namespace weft::cpu {

// In kInline and kAhead, when more operations than this are queued, an enqueuing thread runs ready ones until half as
// many are left. CUDA blocks when its queue is full.
constexpr std::size_t kQueueLimit = 1024;

void List::push(Runnable *node) {
  node->next = nullptr;
  (tail ? tail->next : head) = node;
  tail = node;
  ++size;
}

Runnable *List::pop() { return head ? take(0) : nullptr; }

Runnable *List::take(std::size_t index) {
  Runnable *previous = nullptr, *node = head;
  for (; index > 0; --index) previous = node, node = node->next;
  (previous ? previous->next : head) = node->next;
  if (tail == node) tail = previous;
  --size;
  return node;
}

namespace {

Class class_of(const Runnable &node) {
  switch (node.work.kind) {
    case cu::CU_GRAPH_NODE_TYPE_HOST:
      return kHost;
    case cu::CU_GRAPH_NODE_TYPE_MEMCPY:
    case cu::CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return kCopy;
    default:
      return kDevice;
  }
}

std::uint64_t draw(State &s) {  // splitmix64: the same numbers everywhere
  std::uint64_t x = s.random += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Draws the number of nodes that the device completes during one call of the host: often none, sometimes all.
std::size_t draw_steps(State &s) {
  const std::uint64_t x = draw(s);
  if (x % 4 != 0) return 0;
  if ((x >> 8) % 16 == 0) return ~std::size_t(0);
  return 1 + (x >> 16) % 6;
}

Lane &lane_of(State &s, Runnable *node) {
  if (node->exec && node->lane > 0) return *node->exec->lanes[node->lane];
  Stream &stream = node->exec ? *node->exec->stream : *node->stream;
  if (!stream.lane) stream.lane = acquire_lane(s);
  return *stream.lane;
}

void retire(State &s, Stream &stream) {
  if (stream.lane) s.free_lanes.push_back(stream.lane);
  stream.lane = nullptr;
  for (auto &living : s.living) {
    if (living.get() != &stream) continue;
    std::swap(living, s.living.back());
    s.living.pop_back();
    return;
  }
}

void advance(State &s, Stream &stream) {
  while (!stream.started && !stream.queue.empty()) {
    Op &op = stream.queue.front();
    switch (op.kind) {
      case Op::kNode:
        stream.started = true;
        stream.current.work = op.work;
        stream.current.stream = &stream;
        dispatch(s, &stream.current);
        return;
      case Op::kWait:
        if (op.target->completed < op.point) {
          stream.started = true;
          op.target->blocked.push_back(&stream);
          return;
        }
        finish_head(s, stream);
        break;
      case Op::kRecord:
        // A later record of the event supersedes this one.
        if (op.event->records == op.point) {
          op.event->time_ns = now_ns();
          op.event->timed = true;
        }
        finish_head(s, stream);
        break;
      case Op::kLaunch:
        stream.started = true;
        start_launch(s, stream);
        return;
    }
  }
}

void push(State &s, Stream &stream, Op op) {
  stream.queue.push_back(std::move(op));
  ++stream.enqueued;
  ++s.outstanding;
  if (Event *event = stream.queue.back().event.get()) event->point = stream.enqueued;
  if (stream.started) return;
  s.to_advance.push_back(stream.shared_from_this());
  settle(s);
}

void push_wait(State &s, Stream &stream, const std::shared_ptr<Stream> &target) {
  Op op{Op::kWait, {}, target, target->enqueued, nullptr, nullptr};
  push(s, stream, std::move(op));
}

Runnable *pick_in_order(State &s) {
  offer_to_worker(s);
  const Runnable *device = s.ready[kDevice].head, *copy = s.ready[kCopy].head;
  const Runnable *host = s.host_running ? nullptr : s.ready[kHost].head;
  // While there is other work, leave to the worker a host node that it will take, or, if it is not called yet, one that
  // is worth handing over. Without other work, run the node here: the worker may not take it.
  const bool has_other = device || copy;
  if (host && has_other && (s.worker_called ? s.costs.worker_may_run(*host) : s.costs.worth_handing_over(*host)))
    host = nullptr;
  List *first = nullptr;
  std::uint64_t ticket = ~std::uint64_t(0);
  const Runnable *heads[kClasses] = {device, host, copy};
  for (int i = 0; i < kClasses; ++i) {
    if (!heads[i] || heads[i]->ticket >= ticket) continue;
    ticket = heads[i]->ticket;
    first = &s.ready[i];
  }
  return first ? first->pop() : nullptr;
}

Runnable *pick_at_random(State &s) {
  std::size_t total = 0;
  for (const List &list : s.ready) total += list.size;
  if (total == 0) return nullptr;
  std::size_t index = draw(s) % total;
  for (List &list : s.ready) {
    if (index < list.size) return list.take(index);
    index -= list.size;
  }
  return nullptr;
}

// Picks from the oldest or the newest stream that can advance. If a program lacks a wait, this order makes the
// unordered work run early, so that tests find the race.
Runnable *pick_one_sided(State &s) {
  if (s.changes_sides && draw(s) % 16 == 0) s.newest_first = !s.newest_first;
  List *of = nullptr;
  std::size_t index = 0;
  std::uint64_t best = 0;
  for (List &list : s.ready) {
    std::size_t i = 0;
    for (const Runnable *node = list.head; node; node = node->next, ++i) {
      const std::uint64_t number = node->work.stream_number;
      if (of && (s.newest_first ? number <= best : number >= best)) continue;
      of = &list, index = i, best = number;
    }
  }
  return of ? of->take(index) : nullptr;
}

Runnable *pick(State &s) {
  if (s.value_waits.head) release_values(s);
  switch (s.schedule) {
    case Schedule::kRandom:
      return pick_at_random(s);
    case Schedule::kAhead:
      return pick_one_sided(s);
    default:
      return pick_in_order(s);
  }
}

// Plays the device: runs ready nodes until `done` or until none is ready. Only one thread at a time plays.
template <class Done>
void play(State &s, Lock &lock, Done done) {
  s.player = true;
  while (!done()) {
    Runnable *node = pick(s);
    if (!node) break;
    run_node(s, lock, node, false);
    notify(s);
  }
  s.player = false;
  // Other threads may still wait for their points, so one of them must play next. They may all be asleep, for one of
  // two reasons. `notify` woke nobody, because this thread's last node ended no operation. Or the worker ended this
  // thread's wait: the others woke, found a player and went back to sleep. If no node is ready, none needs to play. The
  // rest of their work then follows a node on the worker, which calls the player, or a word, which they check
  // themselves.
  call_player(s);
}

template <class Done>
void wait_until(State &s, Lock &lock, Done done) {
  while (!done()) {
    if (s.schedule != Schedule::kThreads && !s.player) {
      play(s, lock, done);
      if (done()) return;
    }
    const bool for_worker = s.worker_called && !s.player;
    const std::int64_t done_before = s.worker_done_ns;
    ++s.waiters;
    if (s.value_waits.head)
      await_progress(s, lock);
    else
      s.progress.wait(lock);
    --s.waiters;
    // The worker's last node ended this wait, so measure how long this thread took to wake.
    if (for_worker && s.worker_done_ns != done_before) s.costs.record_wake(s.worker_done_ns);
  }
}

template <class Done>
void play_if_free(State &s, Lock &lock, Done done) {
  if (s.schedule != Schedule::kThreads && !s.player) play(s, lock, done);
}

void play_some(State &s, Lock &lock) {
  std::size_t steps = draw_steps(s);
  play_if_free(s, lock, [&steps] { return steps-- == 0; });
}

}  // namespace

// The legacy default stream waits for all blocking streams, and they wait for it.
void order_with_default_stream(State &s, Stream &stream) {
  if (&stream == s.legacy.get()) {
    const auto living = s.living;  // a copy: a stream may be removed while others advance
    for (const auto &other : living) {
      if (other.get() != &stream && !other->non_blocking && !other->queue.empty()) push_wait(s, stream, other);
    }
  } else if (!stream.non_blocking && !s.legacy->queue.empty()) {
    push_wait(s, stream, s.legacy);
  }
}

void call_player(State &s) {
  const bool can_pick = s.ready[kDevice].head || s.ready[kCopy].head || (s.ready[kHost].head && !s.host_running);
  // All waiting threads are woken, because one whose point is reached returns and does not play.
  if (can_pick && !s.player && s.waiters > 0) s.progress.notify_all();
}

void notify(State &s) {
  if (!s.completed_some) return;
  s.completed_some = false;
  // All waiting threads are woken, because each waits for a point of its own.
  if (s.waiters > 0) s.progress.notify_all();
}

void dispatch(State &s, Runnable *node) {
  const Class kind = class_of(*node);
  node->ticket = s.tickets++;
  if (s.schedule == Schedule::kThreads && kind != kHost) {
    Lane &lane = lane_of(s, node);
    lane.ready.push(node);
    lane.wake.notify_one();
    return;
  }
  if (hold_for_value(s, node)) return;
  s.ready[kind].push(node);
  if (s.schedule == Schedule::kThreads) s.host_wake.notify_one();
}

void finish_head(State &s, Stream &stream) {
  const std::shared_ptr<Stream> keep = stream.shared_from_this();
  const Op op =
      std::move(stream.queue.front());  // destroyed at the end of the scope, when the state is consistent again
  stream.queue.pop_front();
  stream.started = false;
  ++stream.completed;
  --s.outstanding;
  s.completed_some = true;
  for (std::size_t i = 0; i < stream.blocked.size();) {
    Stream *blocked = stream.blocked[i];
    if (blocked->queue.front().point > stream.completed) {
      ++i;
      continue;
    }
    blocked->started = false;
    s.to_advance.push_back(blocked->shared_from_this());
    stream.blocked[i] = stream.blocked.back();
    stream.blocked.pop_back();
  }
  if (!stream.queue.empty())
    s.to_advance.push_back(keep);
  else if (stream.destroyed)
    retire(s, stream);
}

void settle(State &s) {
  while (!s.to_advance.empty()) {
    const std::shared_ptr<Stream> stream = std::move(s.to_advance.back());
    s.to_advance.pop_back();
    advance(s, *stream);
  }
}

void complete(State &s, Runnable *node) {
  if (node->exec)
    finish_graph_node(s, *node);
  else
    finish_head(s, *node->stream);
  settle(s);
  if (!s.player) return;
  offer_to_worker(s);
}

void enqueue(State &s, Lock &lock, Stream &stream, Op op) {
  order_with_default_stream(s, stream);
  push(s, stream, std::move(op));
  if (s.schedule == Schedule::kRandom) return play_some(s, lock);
  offer_to_worker(s);
  if (s.outstanding > kQueueLimit) play_if_free(s, lock, [&s] { return s.outstanding <= kQueueLimit / 2; });
}

void destroy_stream(State &s, Stream &stream) {
  stream.destroyed = true;
  if (stream.queue.empty()) retire(s, stream);
}

void wait_for_point(State &s, Lock &lock, const std::shared_ptr<Stream> &stream, std::uint64_t point) {
  wait_until(s, lock, [&stream, point] { return stream->completed >= point; });
}

void wait_for_all(State &s, Lock &lock) {
  std::vector<std::pair<std::shared_ptr<Stream>, std::uint64_t>> targets;
  for (const auto &stream : s.living) targets.emplace_back(stream, stream->enqueued);
  wait_until(s, lock, [&] {
    while (!targets.empty() && targets.back().first->completed >= targets.back().second) targets.pop_back();
    return targets.empty() && s.destructors.empty() && !s.destructor_running;
  });
}

void poke(State &s, Lock &lock, const std::shared_ptr<Stream> &stream, std::uint64_t point) {
  if (s.schedule == Schedule::kRandom) return play_some(s, lock);
  std::size_t steps = s.schedule == Schedule::kAhead ? 1 : ~std::size_t(0);  // a polling caller sees progress
  play_if_free(s, lock, [&stream, &steps, point] { return stream->completed >= point || steps-- == 0; });
}

}  // namespace weft::cpu
