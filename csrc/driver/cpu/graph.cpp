// Graphs, graph execs, and the user objects that they own.
#include "driver/cpu/calls.h"

namespace weft::cu {

using namespace weft::cpu;

CUgraph_st::~CUgraph_st() {
  State &s = state();
  for (const auto &node : nodes) s.nodes.erase(node.get());
  for (const auto &[object, count] : objects) release_object(s, object, count);
}

CUgraphExec_st::~CUgraphExec_st() {
  State &s = state();
  for (Lane *lane : lanes)
    if (lane) s.free_lanes.push_back(lane);
  for (const auto &[object, count] : objects) release_object(s, object, count);
}

}  // namespace weft::cu

namespace weft::cpu {

using namespace cu;

namespace {

void finish_launch(State &s, GraphExec &exec) {
  Stream &stream = *exec.stream;
  exec.stream = nullptr;
  if (!exec.waiting.empty()) {
    Stream *next = exec.waiting.front();
    exec.waiting.pop_front();
    next->started = false;
    s.to_advance.push_back(next->shared_from_this());
  }
  finish_head(s, stream);
}

// Assigns a lane (thread) to each node: that of a predecessor if no other successor took it, else a new lane.
void assign_lanes(GraphExec &exec, const Graph &graph) {
  std::vector<char> continued(graph.nodes.size(), 0);
  bool first = true;
  exec.lane_count = 1;
  for (const auto &node : graph.nodes) {
    Runnable &clone = exec.nodes[node->index];
    bool has_lane = false;
    for (CUgraphNode before : node->dependencies) {
      if (continued[before->index]) continue;
      continued[before->index] = 1;
      clone.lane = exec.nodes[before->index].lane;
      has_lane = true;
      break;
    }
    if (!has_lane) clone.lane = first ? 0 : exec.lane_count++;
    first = false;
  }
}

}  // namespace

void release_object(State &s, UserObject *object, std::uint64_t count) {
  object->references -= count;
  if (object->references > 0) return;
  s.destructors.push_back({object->destroy, object->pointer});
  s.host_wake.notify_one();
  s.objects.erase(object);
}

void start_launch(State &s, Stream &stream) {
  GraphExec &exec = *stream.queue.front().exec;
  // Launches of one exec run one after another, as in CUDA.
  if (exec.stream) {
    exec.waiting.push_back(&stream);
    return;
  }
  exec.stream = &stream;
  exec.remaining = exec.nodes.size();
  if (exec.remaining == 0) return finish_launch(s, exec);
  if (s.schedule == Schedule::kThreads && exec.lanes.empty()) {
    exec.lanes.resize(exec.lane_count);
    for (unsigned i = 1; i < exec.lane_count; ++i) exec.lanes[i] = acquire_lane(s);
  }
  for (unsigned root : exec.roots) dispatch(s, &exec.nodes[root]);
}

void finish_graph_node(State &s, Runnable &node) {
  GraphExec &exec = *node.exec;
  const unsigned *successor = exec.successors.data() + node.first_successor;
  for (unsigned i = 0; i < node.successors; ++i) {
    Runnable &next = exec.nodes[successor[i]];
    if (--next.pending > 0) continue;
    next.pending = next.predecessors;  // reset for the next launch
    dispatch(s, &next);
  }
  if (--exec.remaining == 0) finish_launch(s, exec);
}

CUresult graph_instantiate(State &s, Lock &, CUgraphExec *out, CUgraph handle, unsigned long long flags) {
  const std::shared_ptr<Graph> graph = find(s.graphs, handle);
  if (!graph) return CUDA_ERROR_INVALID_HANDLE;
  // Flag 1 (free the memory of allocation nodes at launch) has no effect: this driver has no such nodes.
  if (!out || graph->capturing || flags > 1) return CUDA_ERROR_INVALID_VALUE;
  auto exec = std::make_shared<GraphExec>();
  exec->nodes.resize(graph->nodes.size());
  std::vector<std::vector<unsigned>> successors(graph->nodes.size());
  for (const auto &node : graph->nodes) {
    const auto index = static_cast<unsigned>(node->index);
    Runnable &clone = exec->nodes[index];
    clone.work = node->work;
    clone.exec = exec.get();
    clone.predecessors = clone.pending = static_cast<int>(node->dependencies.size());
    if (node->dependencies.empty()) exec->roots.push_back(index);
    for (CUgraphNode before : node->dependencies) successors[before->index].push_back(index);
  }
  for (std::size_t i = 0; i < successors.size(); ++i) {
    exec->nodes[i].first_successor = static_cast<unsigned>(exec->successors.size());
    exec->nodes[i].successors = static_cast<unsigned>(successors[i].size());
    exec->successors.insert(exec->successors.end(), successors[i].begin(), successors[i].end());
  }
  assign_lanes(*exec, *graph);
  exec->objects = graph->objects;
  for (const auto &[object, count] : exec->objects) object->references += count;
  s.execs.emplace(exec.get(), exec);
  *out = exec.get();
  return CUDA_SUCCESS;
}

CUresult graph_launch(State &s, Lock &lock, CUgraphExec handle, CUstream stream_handle) {
  std::shared_ptr<Stream> stream;
  if (CUresult r = find_stream(s, stream_handle, stream)) return r;
  std::shared_ptr<GraphExec> exec = find(s.execs, handle);
  if (!exec) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture) return refuse_in_capture(*stream, CUDA_ERROR_NOT_SUPPORTED);
  enqueue(s, lock, *stream, {Op::kLaunch, {}, nullptr, 0, nullptr, std::move(exec)});
  return CUDA_SUCCESS;
}

CUresult graph_destroy(State &s, Lock &, CUgraph handle) {
  const std::shared_ptr<Graph> graph = find(s.graphs, handle);
  if (!graph) return CUDA_ERROR_INVALID_HANDLE;
  if (graph->capturing) return CUDA_ERROR_INVALID_VALUE;
  s.graphs.erase(handle);
  return CUDA_SUCCESS;
}

CUresult graph_exec_destroy(State &s, Lock &, CUgraphExec exec) {
  return s.execs.erase(exec) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult graph_get_nodes(State &s, Lock &, CUgraph handle, CUgraphNode *nodes, std::size_t *count) {
  const std::shared_ptr<Graph> graph = find(s.graphs, handle);
  if (!graph) return CUDA_ERROR_INVALID_HANDLE;
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t total = graph->nodes.size();
  if (nodes) {
    for (std::size_t i = 0; i < *count; ++i) nodes[i] = i < total ? graph->nodes[i].get() : nullptr;
    *count = std::min(*count, total);
  } else {
    *count = total;
  }
  return CUDA_SUCCESS;
}

CUresult graph_get_edges(State &s, Lock &, CUgraph handle, CUgraphNode *from, CUgraphNode *to, std::size_t *count) {
  const std::shared_ptr<Graph> graph = find(s.graphs, handle);
  if (!graph) return CUDA_ERROR_INVALID_HANDLE;
  if (!count || !from != !to) return CUDA_ERROR_INVALID_VALUE;
  std::size_t total = 0;
  for (const auto &node : graph->nodes) {
    for (CUgraphNode before : node->dependencies) {
      if (from && total < *count) from[total] = before, to[total] = node.get();
      ++total;
    }
  }
  for (std::size_t i = total; from && i < *count; ++i) from[i] = to[i] = nullptr;
  *count = from ? std::min(*count, total) : total;
  return CUDA_SUCCESS;
}

CUresult graph_node_get_type(State &s, Lock &, CUgraphNode node, CUgraphNodeType *type) {
  if (!s.nodes.count(node)) return CUDA_ERROR_INVALID_HANDLE;
  if (!type) return CUDA_ERROR_INVALID_VALUE;
  *type = node->work.kind;
  return CUDA_SUCCESS;
}

CUresult user_object_create(State &s, Lock &, CUuserObject *out, void *pointer, CUhostFn destroy, unsigned count,
                            unsigned flags) {
  if (!out || !destroy || count == 0 || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) return CUDA_ERROR_INVALID_VALUE;
  if (!start_host_thread(s)) return CUDA_ERROR_OUT_OF_MEMORY;
  auto object = std::make_unique<UserObject>(UserObject{pointer, destroy, count});
  *out = object.get();
  s.objects.emplace(object.get(), std::move(object));
  return CUDA_SUCCESS;
}

CUresult user_object_release(State &s, Lock &, CUuserObject object, unsigned count) {
  if (!s.objects.count(object)) return CUDA_ERROR_INVALID_HANDLE;
  if (count == 0 || count > object->references) return CUDA_ERROR_INVALID_VALUE;
  release_object(s, object, count);
  return CUDA_SUCCESS;
}

CUresult graph_retain_user_object(State &s, Lock &, CUgraph handle, CUuserObject object, unsigned count,
                                  unsigned flags) {
  const std::shared_ptr<Graph> graph = find(s.graphs, handle);
  if (!graph || !s.objects.count(object)) return CUDA_ERROR_INVALID_HANDLE;
  if (count == 0 || flags > CU_GRAPH_USER_OBJECT_MOVE) return CUDA_ERROR_INVALID_VALUE;
  if (flags != CU_GRAPH_USER_OBJECT_MOVE) object->references += count;
  graph->objects[object] += count;
  return CUDA_SUCCESS;
}

}  // namespace weft::cpu
