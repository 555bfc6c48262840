// Runs a request and shows its answer as it arrives: tokens, figures, timeline.

import { $, isNarrow, make, number, scrollTo } from './dom.js'
import { generate } from './api.js'
import { modelNamed, request } from './request.js'
import { watchTimeline } from './timeline.js'
import { TokenBox, showLegend, showStats } from './tokens.js'

/** Run the request that the page describes, and add its tokens to `turn`, an element. With `messages` it is a chat's.
 *  Calls `onAnswer` with the answer so far at each arrival, so that a stopped answer is not lost. Returns the answer. */
export async function runAnswer(turn, messages, signal, onAnswer = () => {}) {
  const model = modelNamed($('model').value), box = new TokenBox('The answer. Arrow keys walk through its tokens.')
  turn.append(box.element)
  $('stats').hidden = true
  showLegend({}, 0)
  if (isNarrow()) scrollTo($('answer-card'))
  const recording = { wanted: true, hasTokens: false }
  watchTimeline(model, recording, signal)
  try {
    const answer = await generate(request({ model: model.id, drafts: number('drafts'), messages }), signal, (tokens, soFar) => {
      recording.hasTokens = true
      onAnswer(soFar)
      box.add(tokens, model.vocab_size)
      showStats(soFar, box)
      showLegend(box.counts, box.overruled)
    })
    onAnswer(answer) // it may have no token besides the end
    box.markEnd(answer)
    showStats(answer, box)
    $('announcement').textContent = `The answer: ${answer.text}`
    return answer
  } catch (error) {
    if (!recording.hasTokens) turn.remove()
    else if (error.name === 'AbortError') turn.append(make('p', { class: 'hint' }, 'Stopped.'))
    throw error
  } finally {
    recording.wanted = false
  }
}

/** Run the prompt as a completion, in place of the last answer. */
export async function complete(signal) {
  if (!$('prompt').value) return $('prompt').focus()
  const turn = make('div', { class: 'turn' })
  $('turns').replaceChildren(turn)
  await runAnswer(turn, null, signal)
}
