/** What the user is told when there are no figures, or none of now. */

import type { TranslationBundle } from '@jupyterlab/translation';

import { safeText } from './describe';
import { momentOf } from './format';
import type { DeviceModel } from './model';
import type { IStatus } from './view';

export interface INotice {
  text: string;
  /** The same in two or three words, for the status bar. */
  brief: string;
  /** Whether it passes by itself. */
  passing: boolean;
}

/** Return what to tell; null when all is well. */
export function notice(model: DeviceModel, trans: TranslationBundle): INotice | null {
  switch (model.problem) {
    case 'absent':
      return {
        text: trans.__(
          'This Jupyter server does not report a shared device. If the package was just installed, stop the server and start it again.'
        ),
        brief: trans.__('no server extension'),
        passing: true
      };
    case 'lost':
      return {
        text: trans.__('The Jupyter server does not answer. Trying again.'),
        brief: trans.__('server away'),
        passing: true
      };
    case 'version':
      return {
        text: trans.__(
          'This page and the Jupyter server have different versions of sharedkernel. Restart the server, then reload the page.'
        ),
        brief: trans.__('reload needed'),
        passing: false
      };
    case 'garbage':
      return {
        text: trans.__(
          'The gateway says something that this page does not understand; it may be of another version. Ask its admin which version of sharedkernel to install.'
        ),
        brief: trans.__('gateway of another version'),
        passing: false
      };
    case null:
      break;
  }
  const { state, message, since } = model.view.gateway;
  const moment = since ?? model.asOf;
  switch (state) {
    case 'connected':
      return null;
    case 'connecting':
      return { text: trans.__('Connecting to the gateway…'), brief: trans.__('connecting'), passing: true };
    case 'no_figures':
      return {
        text: trans.__(
          '%1: %2 Notebooks keep their variables.',
          moment === null ? trans.__('No figures') : trans.__('No figures since %1', momentOf(moment)),
          safeText(message ?? '')
        ),
        brief: trans.__('no figures'),
        passing: true
      };
    case 'away':
      return {
        text: trans.__(
          'The gateway is away; sessions and their tensors stay where they are. (%1)',
          safeText(message ?? '')
        ),
        brief: trans.__('gateway away'),
        passing: true
      };
    case 'refused':
    case 'unconfigured':
      return { text: safeText(message ?? state), brief: trans.__('no gateway'), passing: false };
  }
}

/** Return what to tell of a gateway that drains; null: it does not. */
export function drainNotice(status: IStatus, trans: TranslationBundle): string | null {
  if (status.draining === null) {
    return null;
  }
  const { cells, until } = status.draining;
  const waits =
    cells === 1 ? trans.__('the cell that runs has ended') : trans.__('the %1 cells that run have ended', cells);
  const latest = until === null ? '' : trans.__(', at %1 at the latest', momentOf(new Date(1000 * until)));
  const when = cells === 0 ? trans.__('now') : trans.__('once %1%2', waits, latest);
  return trans.__('The gateway stops %1. No new notebooks start; those that are open keep their variables.', when);
}
