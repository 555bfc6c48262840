// The timeline: what the engine does in an iteration, recorded while an answer runs.

import { $, make } from './dom.js'
import { api } from './api.js'

const RECORD_MS = 60

/** Record and draw repeatedly while `recording.wanted` is true. */
export async function watchTimeline(model, recording, signal) {
  try {
    do {
      const query = new URLSearchParams({ ms: RECORD_MS, model: model.id })
      const { slices, tracks } = await (await api(`v1/timeline?${query}`, null, signal)).json()
      const iterations = iterationsOf(slices)
      if (iterations) drawTimeline(slices, tracks, iterations)
    } while (recording.wanted)
  } catch (error) {
    if (error.code === 'no_timeline') $('timeline-text').textContent = error.message
    // Otherwise another client is recording, or the answer was stopped: keep the last drawing.
  }
}

const GROUPS = [ // the beginning of a label, the name shown for it, and its colour
  ['target_forward', 'forward', 'forward'], ['draft_forward', 'draft', 'draft'], ['pick_draft', 'pick', 'draft'],
  ['sample_and_verify', 'verify', 'small'], ['_apply_masks', 'mask', 'small'], ['note_logprobs', 'logprobs', 'small'], ['weft.guided.', '', 'grammar'],
]

function groupOf(label) {
  const [begin, name, colour] = GROUPS.find(([begin]) => label.startsWith(begin)) ?? [null, label.replace(/^_|:.*/g, ''), 'small']
  return { name: name || label.slice(begin.length).replace(/(_through)?\(.*/, ''), colour }
}

/** The begin and end of up to two iterations in the middle of the recording; null if there is no whole iteration. */
function iterationsOf(slices) {
  const begins = []
  const forwards = {} // by stream: whether its last slice was of a target forward
  for (const one of slices) {
    const is = one.label.startsWith('target_forward')
    if (is && !forwards[one.stream]) begins.push(one.begin_us)
    forwards[one.stream] = is
  }
  if (begins.length < 2) return null
  const first = Math.max(0, Math.floor((begins.length - 3) / 2)), last = Math.min(begins.length - 1, first + 2)
  return { begin: begins[first], end: begins[last], count: last - first }
}

const PAUSE_US = 5 // gap below which slices of the same work are joined

/** Join slices of a stream that follow each other closely and have the same name. */
function joined(slices) {
  const blocks = [], lasts = {}
  for (const one of slices) {
    const last = lasts[one.stream], group = groupOf(one.label)
    if (last?.name === group.name && one.begin_us - last.end_us < PAUSE_US) last.end_us = one.end_us
    else blocks.push(lasts[one.stream] = { ...one, ...group })
  }
  return blocks
}

/** The grammar's time in microseconds, and its part that overlaps the model's kernels. */
function overlap(slices, isGrammar) {
  const model = slices.filter(one => !isGrammar(one) && one.kind === 'kernel')
  let all = 0, beside = 0
  for (const one of slices.filter(one => isGrammar(one) && one.kind === 'host')) {
    all += one.end_us - one.begin_us
    for (const other of model) beside += Math.max(0, Math.min(one.end_us, other.end_us) - Math.max(one.begin_us, other.begin_us))
  }
  return { all, beside }
}

function drawTimeline(slices, tracks, { begin, end, count }) {
  const shown = slices.filter(one => one.end_us > begin && one.begin_us < end), width = end - begin
  const names = new Map(tracks.map(({ stream, name }) => [stream, name]))
  const isGrammar = one => /grammar/.test(names.get(one.stream))
  const place = us => Math.min(100, Math.max(0, (us - begin) / width * 100))
  const blocks = joined(shown)
  const rows = [...names].sort(([, a], [, b]) => a < b ? -1 : 1).map(([stream, name]) => {
    const row = make('div', { class: 'slices' }, ...blocks.filter(one => one.stream === stream).map(one => {
      const us = Math.round(one.end_us - one.begin_us), wide = (one.end_us - one.begin_us) / width > 0.06
      const element = make('div', { class: `slice ${one.colour}`, title: `${one.name}: ${us} µs` }, wide ? one.name : '')
      element.style.left = `${place(one.begin_us)}%`
      element.style.width = `${place(one.end_us) - place(one.begin_us)}%`
      return element
    }))
    return make('div', { class: 'track' }, make('span', {}, name.replace(' stream', '')), row)
  })
  const marks = [0, .25, .5, .75, 1].map(part => make('span', {}, `${(width * part / 1000).toFixed(1)}${part === 1 ? ' ms' : ''}`))
  $('tracks').replaceChildren(...rows, make('div', { class: 'scale' }, ...marks))
  $('colours').hidden = false
  const { all, beside } = overlap(shown, isGrammar)
  const share = Math.round(beside / all * 100)
  $('timeline-text').textContent = `${count === 1 ? 'An iteration' : `${count} iterations`} of ${(width / count / 1000).toFixed(2)} ms. ` + (
    !all ? 'No guide: the grammar had nothing to do.'
    : `The grammar worked ${(all / count / 1000).toFixed(2)} ms in each, ${share} % of it beside the model`
      + (share < 5 ? ': here the two took turns.' : '.'))
}
