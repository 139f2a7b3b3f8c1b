/** The figures of the status document that the pages show: made by `make schema`, do not edit it. */

import type { IFigure } from './format';
import type { IDeviceStatus, ISessionStatus, IUserStatus } from './statusdocument';

// prettier-ignore
export const deviceFigures = {
  utilisation: { place: 'line', unit: 'percent', fields: ['utilisation'], whole: null, words: (amount, trans) => trans.__('%1 busy', amount) },
  temperature: { place: 'line', unit: 'count', fields: ['temperature_celsius'], whole: null, words: (amount, trans) => trans.__('%1 °C', amount) },
  power: { place: 'line', unit: 'count', fields: ['power_watts'], whole: 'power_limit_watts', words: (amount, trans) => trans.__('%1 W', amount) },
} satisfies Record<string, IFigure<IDeviceStatus>>;

// prettier-ignore
export const userFigures = {
  persistent: { place: 'details', unit: 'bytes', fields: ['persistent_bytes'], whole: null, words: (amount, trans) => trans.__('%1 persistent', amount) },
  ephemeral: { place: 'details', unit: 'bytes', fields: ['ephemeral_bytes'], whole: null, words: (amount, trans) => trans.__('%1 ephemeral', amount) },
  framework: { place: 'details', unit: 'bytes', fields: ['framework_bytes'], whole: null, words: (amount, trans) => trans.__('%1 framework', amount) },
  memory: { place: 'beside', unit: 'bytes', fields: ['persistent_bytes', 'ephemeral_bytes', 'framework_bytes', 'shelf_bytes'], whole: null, words: amount => amount },
} satisfies Record<string, IFigure<IUserStatus>>;

// prettier-ignore
export const sessionFigures = {
  persistent: { place: 'details', unit: 'bytes', fields: ['persistent_bytes'], whole: null, words: (amount, trans) => trans.__('%1 persistent', amount) },
  ephemeral: { place: 'details', unit: 'bytes', fields: ['ephemeral_bytes'], whole: null, words: (amount, trans) => trans.__('%1 ephemeral', amount) },
  framework: { place: 'details', unit: 'bytes', fields: ['framework_bytes'], whole: null, words: (amount, trans) => trans.__('%1 framework', amount) },
  memory: { place: 'beside', unit: 'bytes', fields: ['persistent_bytes', 'ephemeral_bytes', 'framework_bytes'], whole: null, words: amount => amount },
  left: { place: 'line', unit: 'about', fields: ['time_left_seconds'], whole: null, words: (amount, trans) => trans.__('about %1 left', amount) },
} satisfies Record<string, IFigure<ISessionStatus>>;
