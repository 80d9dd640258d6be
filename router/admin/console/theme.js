// Before anything is drawn: the scheme that was chosen on this machine, if one was; else the system's holds.
'use strict';
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem('tailroute.theme');
  } catch {
    // No storage: the system's.
  }
  if (chosen === 'light' || chosen === 'dark') document.documentElement.dataset.theme = chosen;
})();
