//! An argument that is one of a few things: its names are said where it is defined, what a command
//! says of each by the command.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// Parses one of `table` by its name; the help lists each name with its description.
pub fn choice<T: Copy + Send + Sync + 'static>(
    table: &'static [(T, &'static str)],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    let values = table.iter().map(move |(value, help)| PossibleValue::new(name(*value)).help(*help));
    PossibleValuesParser::new(values).try_map(move |text| {
        let found = table.iter().find(|(value, _)| name(*value) == text);
        found.map(|(value, _)| *value).ok_or("no such value")
    })
}
