//! Parses an argument that has one of a few named values. The names are defined beside the type,
//! and each command adds a description of each value.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// Parses one of `table` by its name; the help lists each name with its description.
pub fn choice<T: Copy + Send + Sync + 'static>(
    table: &'static [(T, &'static str)],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    choice_with_experiments(table, name, |_| false)
}

/// Like [`choice`], with values that are experiments (`--experiment OPTION=VALUE`), which the help
/// does not list.
pub fn choice_with_experiments<T: Copy + Send + Sync + 'static>(
    table: &'static [(T, &'static str)],
    name: fn(T) -> &'static str,
    is_experiment: fn(T) -> bool,
) -> impl TypedValueParser<Value = T> {
    let value = move |(value, help): &(T, &'static str)| {
        PossibleValue::new(name(*value)).help(*help).hide(is_experiment(*value))
    };
    PossibleValuesParser::new(table.iter().map(value)).try_map(move |text| {
        let found = table.iter().find(|(value, _)| name(*value) == text);
        found.map(|(value, _)| *value).ok_or("no such value")
    })
}
