/** The pictures on buttons, in the colour of the text around them. */

import * as React from 'react';

function glyph(path: string): () => React.ReactElement {
  return () => (
    <svg className="sk-Glyph" viewBox="0 0 24 24" width="16" height="16" aria-hidden="true" focusable="false">
      <path d={path} fill="currentColor" />
    </svg>
  );
}

/** Memory leaves the device. */
export const OffloadGlyph = glyph('M5 5h14v2H5zM19 14h-4v6H9v-6H5l7-7z');

export const InterruptGlyph = glyph('M6 6h12v12H6z');

export const CloseGlyph = glyph(
  'M19 6.4 17.600 5 12 10.600 6.400 5 5 6.400 10.600 12 5 17.600 6.400 19 12 13.400 17.600 19 19 17.600 13.400 12z'
);
