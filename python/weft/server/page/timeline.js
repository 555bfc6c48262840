// The timeline: what the engine does in an iteration, recorded while an answer runs.

import { $, make } from './dom.js'
import { api } from './api.js'

const RECORD_MS = 60, MAX_RECORD_MS = 480, WAIT_MS = 2000, RETRY_MS = 200
const SHARED = 'Requests with other keys share these iterations, so the page shows only how long each took. '
  + 'When only your requests run, it shows the grammar and the model.'

const pause = (ms, signal) => new Promise(resolve => {
  const timer = setTimeout(resolve, ms)
  signal.addEventListener('abort', () => { clearTimeout(timer); resolve() }, { once: true })
})

/** Record and draw repeatedly while `recording.wanted` is true. The card appears with the first drawing, or says why there
 *  is none. Until a token arrives, a recording waits on the server for the first iterations: a short answer could end
 *  between two recordings. */
export async function watchTimeline(model, recording, signal) {
  let ms = RECORD_MS, isDrawn = false
  $('timeline-card').setAttribute('aria-busy', true)
  try {
    do {
      const recorded = await record(model, ms, recording.hasTokens ? 0 : WAIT_MS, signal)
      if (recorded === null) await pause(RETRY_MS, signal)
      else if (draw(recorded)) isDrawn = true
      else ms = Math.min(2 * ms, MAX_RECORD_MS) // the iterations may be long
    } while (recording.wanted)
    // An older drawing would be of another answer.
    if (!isDrawn) explain('The answer was too short for a recording: let it write more tokens, or run it again.')
  } catch (error) {
    if (error.name !== 'AbortError') explain(`No timeline: ${error.message}`)
  } finally {
    $('timeline-card').setAttribute('aria-busy', false)
  }
}

/** Record for `ms`, after at most `wait` milliseconds without iterations. Returns null if another client is recording. */
async function record(model, ms, wait, signal) {
  const query = new URLSearchParams({ ms, wait_ms: wait, model: model.id })
  try {
    return await (await api(`v1/timeline?${query}`, null, signal)).json()
  } catch (error) {
    if (error.status === 429) return null
    throw error
  }
}

/** Show a sentence in place of a drawing. */
function explain(text) {
  $('timeline-card').hidden = false
  $('tracks').replaceChildren()
  $('colours').hidden = $('sketch').hidden = true
  $('timeline-text').textContent = text
}

/** Draw a recording. Returns false if it has no whole iteration. */
function draw({ slices, tracks, shared }) {
  const iterations = iterationsOf(slices)
  if (shared.length) drawShared(shared)
  else if (iterations) drawStreams(slices, tracks, iterations)
  else return false
  $('timeline-card').hidden = false
  return true
}

// The beginning of a label, the name shown for it, and its colour. The page requests the log-probabilities only for its
// tooltips, so they do not count.
const GROUPS = [
  ['target_forward', 'forward', 'forward'], ['draft_forward', 'draft', 'draft'], ['pick_draft', 'pick', 'draft'],
  ['sample_and_verify', 'verify', 'small'], ['_apply_masks', 'mask', 'small'], ['note_logprobs', 'logprobs', 'page'],
  ['weft.guided.', '', 'grammar'],
]

function groupOf(label) {
  const [begin, name, colour] = GROUPS.find(([begin]) => label.startsWith(begin)) ?? [null, label.replace(/^_|:.*/g, ''), 'small']
  return { name: name || label.slice(begin.length).replace(/(_through)?\(.*/, ''), colour }
}

/** The begin and end of up to two iterations in the middle of the recording; null if there is no whole iteration. */
function iterationsOf(slices) {
  const begins = []
  const forwards = {} // by stream: whether its last slice was of a target forward
  for (const slice of slices) {
    const is = slice.label.startsWith('target_forward')
    if (is && !forwards[slice.stream]) begins.push(slice.begin_us)
    forwards[slice.stream] = is
  }
  if (begins.length < 2) return null
  const first = Math.max(0, Math.floor((begins.length - 3) / 2)), last = Math.min(begins.length - 1, first + 2)
  return { begin: begins[first], end: begins[last], count: last - first }
}

const PAUSE_US = 5 // gap below which slices of the same work are joined

/** Join slices of a stream that follow each other closely and have the same name. */
function joined(slices) {
  const blocks = [], lasts = {}
  for (const slice of slices) {
    const last = lasts[slice.stream], group = groupOf(slice.label)
    if (last?.name === group.name && slice.begin_us - last.end_us < PAUSE_US) last.end_us = slice.end_us
    else blocks.push(lasts[slice.stream] = { ...slice, ...group })
  }
  return blocks
}

/** The grammar's time in microseconds, and its part that overlaps the model's kernels. */
function overlap(slices, isGrammar) {
  const kernels = slices.filter(slice => !isGrammar(slice) && slice.kind === 'kernel')
  let all = 0, beside = 0
  for (const task of slices.filter(slice => isGrammar(slice) && slice.kind === 'host')) {
    all += task.end_us - task.begin_us
    for (const kernel of kernels) beside += Math.max(0, Math.min(task.end_us, kernel.end_us) - Math.max(task.begin_us, kernel.begin_us))
  }
  return { all, beside }
}

/** A track with a name and blocks, each with begin and end in microseconds, a name and a colour. */
function track(name, blocks, begin, width) {
  const row = make('div', { class: 'slices' }, ...blocks.map(block => {
    const us = block.end_us - block.begin_us
    const label = us / width > 0.06 ? block.name : ''
    const element = make('div', { class: `slice ${block.colour}`, title: `${block.name}: ${Math.round(us)} µs` }, label)
    place(element, (block.begin_us - begin) / width * 100, us / width * 100)
    return element
  }))
  return make('div', { class: 'track' }, make('span', {}, name), row)
}

/** Place an element in its row, in percent of the row's width, cut at the row's ends. */
function place(element, from, length) {
  const left = Math.max(0, from), right = Math.min(100, from + length)
  element.style.left = `${left}%`
  element.style.width = `${right - left}%`
}

function scale(width) {
  const marks = [0, .25, .5, .75, 1].map(part => make('span', {}, `${(width * part / 1000).toFixed(1)}${part === 1 ? ' ms' : ''}`))
  return make('div', { class: 'scale' }, ...marks)
}

function drawStreams(slices, tracks, { begin, end, count }) {
  const shown = slices.filter(slice => slice.end_us > begin && slice.begin_us < end), width = end - begin
  const names = new Map(tracks.map(({ stream, name }) => [stream, name]))
  const isGrammar = slice => /grammar/.test(names.get(slice.stream))
  const blocks = joined(shown)
  const rows = [...names].sort(([, a], [, b]) => a < b ? -1 : 1).map(([stream, name]) =>
    track(name.replace(' stream', ''), blocks.filter(block => block.stream === stream), begin, width))
  $('tracks').replaceChildren(...rows, scale(width))
  $('colours').hidden = false
  const { all, beside } = overlap(shown, isGrammar)
  const extra = blocks.filter(block => block.colour === 'page').reduce((sum, block) => sum + block.end_us - block.begin_us, 0)
  const each = us => `${(us / count / 1000).toFixed(2)} ms`
  $('sketch').hidden = !all
  $('timeline-text').textContent = `An iteration takes ${each(width - extra)}${extra ? ', without the log-probabilities, which only this page requests' : ''}. `
    + (all ? grammarSentence(each(all), all / (width - extra), beside / all) : 'No guide: the grammar has nothing to do.')
}

function grammarSentence(time, part, share) {
  const percent = value => `${Math.max(1, Math.round(value * 100))} %`
  const beginning = `The grammar works ${time} of it, ${percent(part)}`
  if (share >= 0.05) {
    return `${beginning}; ${percent(share)} of that overlaps the model. This server has no GPU: the model needs the CPU too, so the `
      + 'two often take turns.'
  }
  return `${beginning}. This server has no GPU: one CPU thread computes the model and runs the grammar's tasks in turn, so they do `
    + 'not overlap here.'
}

function drawShared(shared) {
  const shown = shared.slice(0, 12), begin = shown[0].begin_us, width = shown.at(-1).end_us - begin
  $('tracks').replaceChildren(
    track('iterations', shown.map(iteration => ({ ...iteration, name: 'shared', colour: 'shared' })), begin, width), scale(width))
  $('colours').hidden = $('sketch').hidden = true
  $('timeline-text').textContent = SHARED
}

// The sketch's blocks have their place in the markup, which the page's security policy does not let be a style.
for (const block of document.querySelectorAll('#sketch .slice')) place(block, ...block.dataset.at.split(' ').map(Number))
