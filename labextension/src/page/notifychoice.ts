/** Whether the user of this browser wants notifications, as the browser keeps it for the page. */

const KEY = 'sharedkernel-notifications';

export function keptChoice(): boolean {
  try {
    return window.localStorage.getItem(KEY) === 'on';
  } catch {
    return false; // a browser that keeps nothing
  }
}

export function keepChoice(notifies: boolean): void {
  try {
    if (notifies) {
      window.localStorage.setItem(KEY, 'on');
    } else {
      window.localStorage.removeItem(KEY);
    }
  } catch {
    // It holds as long as the page is there.
  }
}
