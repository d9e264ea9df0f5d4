// Fails to type-check if the declarations of the npm package say other than its code.
import * as cml from "../../../players/web/cml.js";
import type * as cmlTypes from "../../../players/web/cml.d.ts";
import * as picture from "../../../players/web/picture.js";
import type * as pictureTypes from "../../../players/web/picture.d.ts";

// instances stand for classes, whose constructors are mostly private; `submit` also takes networks
// of the replay, which have no device
type Members<M> = {
  [K in keyof M]: M[K] extends { prototype: infer I } ? Omit<I, "submit"> : M[K];
};
declare function membersOf<M>(module: M): Members<M>;
export const checked: [Members<typeof cmlTypes>, Members<typeof pictureTypes>] = [
  membersOf(cml),
  membersOf(picture),
];
