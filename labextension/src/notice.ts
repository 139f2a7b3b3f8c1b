/** What the user is told when there are no figures, or none of now. */

import type { TranslationBundle } from '@jupyterlab/translation';

import { safeText } from './describe';
import type { DeviceModel } from './model';

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
          'This Jupyter server does not report a shared device. Is its extension sharedkernel.serverextension enabled? Trying again.'
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
  const { state, message } = model.view.gateway;
  switch (state) {
    case 'connected':
      return null;
    case 'connecting':
      return { text: trans.__('Connecting to the gateway…'), brief: trans.__('connecting'), passing: true };
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
