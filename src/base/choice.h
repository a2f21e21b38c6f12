/* choice: an enum and the names of its values from one list, so that no order has to be kept in two places.
 *     #define COLOUR_LIST(X) X(COLOUR_RED, red) X(COLOUR_BLUE, blue)
 *     enum colour { CHOICE_ENUM(COLOUR_LIST) };
 *     static const char *const colour_names[] = {CHOICE_NAMES(COLOUR_LIST)};
 *     KEY_CHOICE(struct demo, colour, COLOUR_LIST, "red", "The colour.")      (io/config.h)
 * A row may have further columns, which these macros pass over. */
#ifndef KERNELRL_CHOICE_H
#define KERNELRL_CHOICE_H

#define CHOICE_ENUM(LIST) LIST(CHOICE_ID_)
#define CHOICE_NAMES(LIST) LIST(CHOICE_NAME_)
/* "red|blue", a constant. */
#define CHOICE_TEXT(LIST) (&LIST(CHOICE_TEXT_)[1])

#define CHOICE_ID_(id, ...) id,
#define CHOICE_NAME_(id, name, ...) #name,
#define CHOICE_TEXT_(id, name, ...) "|" #name

#endif
