// One piece of work at a time: its button states, its abort, its error.

import { $ } from './dom.js'
import { ApiError } from './api.js'
import { showVerdict } from './guides.js'
import { hideTip } from './tokens.js'

let running = null // the AbortController of the current work

export const stop = () => running?.abort()

/** Run `work`, which the Stop button can abort, and show its error. Does nothing while other work runs. */
export async function busy(work) {
  if (running) return
  running = new AbortController()
  const { signal } = running
  setBusy(true)
  $('failed').hidden = true
  hideTip()
  try {
    await work(signal)
  } catch (error) {
    if (error.name !== 'AbortError') showFailure(error)
  } finally {
    running = null
    setBusy(false)
  }
}

function setBusy(is) {
  document.body.dataset.state = is ? 'busy' : 'idle'
  $('turns').setAttribute('aria-busy', is)
  $('stop').disabled = !is
  $('run').disabled = $('race').disabled = is
}

export function showFailure(error) {
  const isGuide = error.code === 'guide_error'
  if (isGuide) showVerdict(error.message, 'bad')
  $('failed').textContent = isGuide ? 'The guide is wrong: see below it.' : error instanceof ApiError ? error.message : `This did not work: ${error.message}`
  $('failed').hidden = false
}
