//! The parts of every plot: a frame with title and description, marks by series, and its numbers as
//! a table.
//!
//! Plots have a height in pixels and no width: positions along x are percentages, so a plot is as
//! wide as its column and its text never shrinks. Colours are classes (`s0` to `s7`, style.css); a
//! series also has a mark of its own shape, and its name stands beside it: nothing is shown by
//! colour alone.

use super::scale::Percent;
use maud::{Markup, html};
use pregrant_cli::table::{Align, Table};

const COLOURS: usize = 8;

/// Returns the CSS class of a series' colour.
pub fn colour(series: usize) -> String {
    format!("s{}", series % COLOURS)
}

/// Draws the frame of a plot. `id` is unique in the page. Screen readers read `title` and `about`
/// in place of the drawing.
pub fn drawing(id: &str, title: &str, about: &str, height: u32, inner: Markup) -> Markup {
    html! {
        svg role="img" aria-labelledby={ (id) "-t " (id) "-d" } width="100%" height=(height) {
            title id={ (id) "-t" } { (title) }
            desc id={ (id) "-d" } { (about) }
            (inner)
        }
    }
}

/// Draws the mark of a series, with its middle at a point.
pub fn mark(series: usize, x: Percent, y: f64) -> Markup {
    html! {
        svg x=(x) y=(format!("{y:.1}")) class={ "mark " (colour(series)) } { (shape(series)) }
    }
}

/// Draws one of eight marks: four shapes that are filled, and then the same shapes hollow.
fn shape(series: usize) -> Markup {
    let class = if series % 8 < 4 { "solid" } else { "hollow" };
    html! {
        @match series % 4 {
            0 => circle class=(class) r="4.5" {},
            1 => path class=(class) d="M-4.5-4.5h9v9h-9z" {},
            2 => path class=(class) d="M0-6L6 5H-6z" {},
            _ => path class=(class) d="M0-6.5L6.5 0L0 6.5L-6.5 0z" {},
        }
    }
}

pub fn legend(names: &[(usize, &str)]) -> Markup {
    html! {
        ul.legend {
            @for (series, name) in names {
                li {
                    svg width="16" height="14" aria-hidden="true" { svg x="8" y="7" class={ "mark " (colour(*series)) } { (shape(*series)) } }
                    (name)
                }
            }
        }
    }
}

/// Formats a table of numbers, which scrolls in its box if it is too wide.
pub fn numbers(table: &Table, caption: &str) -> Markup {
    let class = |column: usize| match table.columns().get(column) {
        Some((_, Align::Right)) => "n",
        _ => "w",
    };
    html! {
        div.wide tabindex="0" role="region" aria-label=(caption) {
            table {
                caption { (caption) }
                thead { tr { @for (i, (name, _)) in table.columns().iter().enumerate() { th scope="col" class=(class(i)) { (name) } } } }
                tbody {
                    @for row in table.rows() {
                        tr { @for (i, cell) in row.iter().enumerate() { td class=(class(i)) { (cell) } } }
                    }
                }
            }
        }
    }
}

/// Formats a table that is collapsed below a plot.
pub fn folded(table: &Table, caption: &str) -> Markup {
    html! {
        details { summary { "Numbers: " (caption) } (numbers(table, caption)) }
    }
}
