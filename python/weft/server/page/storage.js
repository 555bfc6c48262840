// The browser's storage, which the user may forbid: then even to name it throws.

/** The text with a name in an area, 'localStorage' or 'sessionStorage'. null if there is none. */
export function load(area, name) {
  try {
    return window[area].getItem(name)
  } catch {
    return null
  }
}

/** Store a text; with null, remove it. Returns false if the storage is full or forbidden. */
export function store(area, name, text) {
  try {
    if (text === null) window[area].removeItem(name)
    else window[area].setItem(name, text)
    return true
  } catch {
    return false
  }
}
