/** The button *Ask for room* in the line of a cell that waits for memory (`sharedkernel/session/wait_display.py`). */

import type { DeviceModel } from './model';
import type { ISessionActions } from './sessionactions';
import { lacksMemory } from './words';

/** As the kernel writes it: hidden, so that it shows only where it does something. */
const BUTTON = 'button.sk-AskForRoom';

/** Have each such button ask for its notebook, which is the one in front once it was clicked. */
export function askFromCells(root: HTMLElement, model: DeviceModel, actions: ISessionActions): void {
  root.addEventListener('click', event => {
    const button = event.target instanceof Element ? event.target.closest<HTMLButtonElement>(BUTTON) : null;
    const session = model.currentSession;
    if (button !== null && session !== null && lacksMemory(session)) {
      button.disabled = true;
      void actions.askForRoom(session);
    }
  });
}
