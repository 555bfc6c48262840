// The CPU driver's objects and its one lock. Internal to this folder.
//
// A stream is a queue of operations. An operation starts when the one before it is done. A node then goes to the ready
// lists, a wait checks its target, and a graph launch sends the graph's first nodes to the ready lists. A point in a
// stream is a count of its operations, so an event is a stream and a count.
//
// The first operation of a stream is in one of these states. `started` is the stream's member.
//
//   state     started  where it is                       moved on by
//   new       no       State::to_advance has its stream  settle -> advance, on the thread that enqueued it or that
//                                                        completed the operation before it
//   waiting   yes      `blocked` of the stream that it   finish_head of that stream -> new
//                      waits for
//   queueing  yes      `waiting` of a graph exec that    finish_launch of that launch -> new
//                      runs for another launch
//   launched  yes      its graph's nodes run             finish_launch, after the last node -> done
//   node      yes      Stream::current, as below         complete -> finish_head -> done
//   done               removed; the next one is new
//
// A node, of a stream or of a graph launch, is in one of these states:
//
//   state     where it is                                moved on by
//   pending   in its graph, with `pending` predecessors  finish_graph_node of the last one: dispatch -> ready or held
//   held      State::value_waits, until its word         release_values, by a thread that picks -> ready
//             satisfies it (not in kThreads: there it
//             runs and blocks its lane)
//   ready     State::ready, or its Lane::ready           a thread that takes it -> running
//   running   with the thread that took it               complete, on that thread -> done
//
// Which thread takes ready nodes depends on the schedule. In kInline, kRandom and kAhead it is the player: any thread
// of the host that waits or queries, one at a time (driver/cpu/run.cpp). A thread that enqueues plays too in kRandom,
// and when the queues are full. In kInline, the worker (an internal thread) takes costly host nodes and copies while
// the player has device nodes. In kThreads, a lane (a thread) takes the device nodes and copies of its stream or
// branch, and the worker takes all host nodes (driver/cpu/host.cpp). The worker runs the destructors of user objects in
// every schedule. State::player has the rules, and a table of notifications.
//
// State::mutex guards everything here. It is never held while a callback runs.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "driver/cpu/costs.h"
#include "driver/cpu/cpu.h"

namespace weft::cpu {

using Lock = std::unique_lock<std::mutex>;
using Stream = cu::CUstream_st;
using Event = cu::CUevent_st;
using Graph = cu::CUgraph_st;
using GraphNode = cu::CUgraphNode_st;
using GraphExec = cu::CUgraphExec_st;
using UserObject = cu::CUuserObject_st;

// The work of a node.
struct Work {
  cu::CUgraphNodeType kind = cu::CU_GRAPH_NODE_TYPE_EMPTY;
  const char *label = "";           // interned
  std::uint64_t stream_number = 0;  // of the stream it was enqueued or captured on
  cu::CUhostFn fn = nullptr;        // kernel and host nodes
  void *data = nullptr;
  void *dst = nullptr;  // memcpy nodes
  const void *src = nullptr;
  std::size_t bytes = 0;
  enum Value : char { kNoValue, kWrite, kWait } value_op = kNoValue;  // memory operations, on the word at `dst`
  unsigned value_flags = 0;
  cu::cuuint32_t value = 0;
};

// A node that can run: the head of a stream (`stream` is set), or a node of a graph being launched (`exec` is set).
struct Runnable {
  Work work;
  Stream *stream = nullptr;
  GraphExec *exec = nullptr;
  Runnable *next = nullptr;
  std::uint64_t ticket = 0;
  int predecessors = 0, pending = 0;             // in a graph
  unsigned first_successor = 0, successors = 0;  // in GraphExec::successors
  unsigned lane = 0;                             // in a graph, schedule kThreads
  NodeCost cost;                                 // in a graph
};

struct List {
  Runnable *head = nullptr, *tail = nullptr;
  std::size_t size = 0;
  void push(Runnable *node);
  Runnable *pop();
  Runnable *take(std::size_t index);
};

// A thread of the schedule kThreads, which runs a stream or one branch of a graph. Lanes are reused and never freed.
struct Lane {
  List ready;
  std::condition_variable wake;
};

struct Capture {
  cu::cuuint64_t id = 0;
  cu::CUstreamCaptureMode mode = cu::CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;
  Stream *origin = nullptr;
  std::shared_ptr<Graph> graph;
  std::vector<Stream *> streams;
  bool active = true, invalid = false;
};

struct Op {
  enum Kind { kNode, kWait, kRecord, kLaunch } kind;
  Work work;
  std::shared_ptr<Stream> target;   // kWait
  std::uint64_t point = 0;          // kWait: of the target; kRecord: which record of the event
  std::shared_ptr<Event> event;     // kRecord
  std::shared_ptr<GraphExec> exec;  // kLaunch
};

// The live objects of a kind, by handle.
template <class T>
using Registry = std::unordered_map<T *, std::shared_ptr<T>>;

}  // namespace weft::cpu

namespace weft::cu {

struct CUstream_st : std::enable_shared_from_this<CUstream_st> {
  std::uint64_t number = 0;
  bool non_blocking = true, destroyed = false;
  std::deque<weft::cpu::Op> queue;
  bool started = false;  // the head of the queue is running, launched, or waits for something
  std::uint64_t enqueued = 0, completed = 0;
  weft::cpu::Runnable current;               // the head, when it is a node
  std::vector<weft::cpu::Stream *> blocked;  // streams whose head waits for a point of this one
  std::shared_ptr<weft::cpu::Capture> capture;
  std::vector<CUgraphNode> dependencies;  // in a capture: what the next node depends on
  weft::cpu::Lane *lane = nullptr;
};

struct CUevent_st {
  unsigned flags = 0;
  std::shared_ptr<CUstream_st> stream;  // of the last record; null: never recorded, or in a capture
  std::uint64_t point = 0, records = 0;
  bool timed = false;
  std::int64_t time_ns = 0;
  std::shared_ptr<weft::cpu::Capture> capture;  // of the last record
  std::vector<CUgraphNode> dependencies;
};

struct CUuserObject_st {
  void *pointer;
  CUhostFn destroy;
  std::uint64_t references;
};

struct CUgraphNode_st {
  weft::cpu::Work work;
  std::size_t index;
  std::vector<CUgraphNode> dependencies;
};

struct CUgraph_st {
  std::vector<std::unique_ptr<CUgraphNode_st>> nodes;
  std::map<CUuserObject, std::uint64_t> objects;
  bool capturing = false;
  ~CUgraph_st();
};

struct CUgraphExec_st {
  std::vector<weft::cpu::Runnable> nodes;
  std::vector<unsigned> successors, roots;
  std::map<CUuserObject, std::uint64_t> objects;
  unsigned lane_count = 1;
  std::vector<weft::cpu::Lane *> lanes;
  std::size_t remaining = 0;
  CUstream_st *stream = nullptr;      // of the launch that is running; null: none is
  std::deque<CUstream_st *> waiting;  // streams whose head is a launch of this exec
  ~CUgraphExec_st();
};

}  // namespace weft::cu

namespace weft::cpu {

enum Class { kDevice, kHost, kCopy, kClasses };

struct Destructor {
  cu::CUhostFn run;
  void *pointer;
};

// The CPU driver's state. It is leaked on purpose, because callbacks and threads may outlive static destruction.
struct State {
  std::mutex mutex;
  Registry<Stream> streams;
  Registry<Event> events;
  Registry<Graph> graphs;
  Registry<GraphExec> execs;
  std::unordered_set<GraphNode *> nodes;
  std::unordered_map<UserObject *, std::unique_ptr<UserObject>> objects;
  std::shared_ptr<Stream> legacy;               // the default stream
  std::vector<std::shared_ptr<Stream>> living;  // includes the default stream, and destroyed streams with pending work
  std::vector<std::shared_ptr<Capture>> captures;  // active ones
  std::uint64_t stream_numbers = 0, capture_ids = 0;
  std::unordered_set<std::string> labels;

  Schedule schedule = Schedule::kInline;
  std::uint64_t random = 0;
  bool newest_first = false, changes_sides = false;  // schedule kAhead
  std::size_t outstanding = 0;                       // operations in all queues
  std::vector<std::shared_ptr<Stream>> to_advance;
  List ready[kClasses];
  List value_waits;  // nodes that wait for a word to be written (all schedules but kThreads)
  std::uint64_t tickets = 0;

  // The player is the thread of the host that runs `play`. The worker is the internal thread that runs `host_thread`.
  // Each takes the oldest ready node that it may take. Copies include the writes and waits of words. Only the schedule
  // kInline calls the worker:
  //
  //   player  worker_called  the player may take               the worker may take
  //   no      no             there is none                     nothing; it sleeps
  //   no      yes            there is none                     host nodes (2) and copies, while a thread waits
  //   yes     no             device nodes, copies, host nodes  nothing; it sleeps
  //                          (1)
  //   yes     yes            device nodes, copies, host nodes  host nodes (2) and copies, while a device node runs or
  //                          (1)                               is ready
  //
  //   (1) None while `host_running`. While a device node or a copy is ready, the player leaves costly ones to the
  //       worker: with `worker_called` those that the worker may run, else those that are worth handing over (Costs).
  //   (2) None while `host_running`, and only those that it may run (Costs::worker_may_run).
  //
  //   flag            set by                                           cleared by
  //   player          `play`                                           `play`, on the same thread
  //   worker_called   `offer_to_worker`, on the player or an           the worker, when it may take nothing, before it
  //                   enqueuing thread                                 sleeps
  //   host_running,   `run_node`, before the node                      `run_node`, after the node
  //   running_device
  //
  // A thread checks its condition and goes to sleep under the mutex. Each change that a sleeping thread needs happens
  // under the mutex too, and a notification follows before the mutex is released. So none is lost:
  //
  //   variable   notified by        after                               who sleeps there
  //   progress   notify             an operation of a stream is done    threads that wait for a point
  //              call_player        the player stopped, or the worker   the same; one of them becomes the player
  //                                 leaves a ready node to it
  //              host_thread        the last destructor ran             threads in `wait_for_all`
  //              hold_for_value     a node waits for a word             threads that wait: they check the word
  //                                                                     from now on, at intervals
  //              values_changed     another thread wrote a word         the same
  //   host_wake  offer_to_worker    worker_called is set                the worker
  //              dispatch           a host node is ready (kThreads)     the worker
  //              release_object     a destructor is due                 the worker
  //   Lane::wake dispatch           a node of the lane is ready         the lane
  //
  // An enqueue need not notify `progress`: a thread waits for operations that were enqueued before, and they depend on
  // earlier operations or on words.
  bool player = false;
  const Runnable *running_device = nullptr;  // has no meaning in kThreads, where several run
  bool host_running = false;
  bool worker_called = false;
  bool destructor_running = false;
  bool completed_some = false;  // an operation of a stream is done since the last `notify`
  int waiters = 0;              // threads that sleep on `progress`
  std::condition_variable progress, host_wake;
  bool host_thread_started = false;
  std::deque<Destructor> destructors;
  std::vector<Lane *> free_lanes;

  Costs costs;
  std::int64_t worker_called_ns = 0, worker_done_ns = 0;  // to time the wake-ups of the worker, and by it

  std::atomic<bool> tracing{false};
  std::vector<TraceSlice> slices;

  State();
};
State &state();

std::int64_t now_ns();
bool in_callback();
const char *take_label();

// Advancing streams (driver/cpu/run.cpp).
void dispatch(State &s, Runnable *node);     // puts the node on the ready lists, or holds it
void finish_head(State &s, Stream &stream);  // removes the first operation, which is done
void settle(State &s);                       // starts the operations that can start
void complete(State &s, Runnable *node);     // after a node ran
void notify(State &s);                       // wakes waiting threads if an operation of a stream is done
void call_player(State &s);                  // wakes waiting threads if a node is ready and no thread plays
void order_with_default_stream(State &s, Stream &stream);
void enqueue(State &s, Lock &lock, Stream &stream, Op op);
void destroy_stream(State &s, Stream &stream);
void wait_for_point(State &s, Lock &lock, const std::shared_ptr<Stream> &stream, std::uint64_t point);
void wait_for_all(State &s, Lock &lock);
// Lets the device run up to `point`, if it can, before a query answers.
void poke(State &s, Lock &lock, const std::shared_ptr<Stream> &stream, std::uint64_t point);

// Threads (driver/cpu/host.cpp).
void run_node(State &s, Lock &lock, Runnable *node, bool on_worker);
bool start_host_thread(State &s);  // false if no thread can be started
void offer_to_worker(State &s);    // wakes the worker for a costly host node, if device work can run in parallel
Lane *acquire_lane(State &s) noexcept;

// Stream memory operations (driver/cpu/values.cpp).
void apply_value(const Work &work, bool blocks);  // writes the word; or waits for it, if it `blocks`
bool hold_for_value(State &s, Runnable *node);    // true: the node must wait for its word, and is set aside
void release_values(State &s);                    // makes the nodes ready whose words were written
void await_progress(State &s, Lock &lock);        // waits, and checks the words from time to time

// Graphs (driver/cpu/graph.cpp).
void start_launch(State &s, Stream &stream);
void finish_graph_node(State &s, Runnable &node);
void release_object(State &s, UserObject *object, std::uint64_t count);

}  // namespace weft::cpu
