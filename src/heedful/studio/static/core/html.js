// Preact and htm under one name.
export { html, render, useState, useReducer, useEffect, useLayoutEffect, useRef, useMemo, useCallback, useErrorBoundary } from "../vendor/htm-preact.js";
